-- A date range: statistics of files and row groups rule most of them out before any row is read.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=512, stack={"x": ["month", "day", "hour", "distance"]})
-- Staged: nothing.
SELECT month, day, hour, distance, dep_delay
FROM flights
WHERE time_hour >= '2013-07-01T00:00:00Z'
  AND time_hour < '2013-08-01T00:00:00Z'
  AND dep_delay IS NOT NULL
