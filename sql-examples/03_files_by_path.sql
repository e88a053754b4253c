-- Files named in the query, without registering a table: the last three months.
-- Tables: none; the paths are relative to where the job runs
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle=True, categories={"origin": ["EWR", "JFK", "LGA"]})
-- Staged: nothing.
SELECT carrier, origin, dest, air_time / distance AS minutes_per_mile
FROM '.demo/flights/2013-1*.parquet'
WHERE air_time IS NOT NULL
