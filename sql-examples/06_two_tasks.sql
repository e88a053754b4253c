-- One training set from two inputs: a UNION ALL of row-local parts is row-local, too.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=2048, shuffle=True)
-- Staged: nothing.
SELECT 0 AS task, hour, distance, dep_delay AS delay FROM flights WHERE dep_delay IS NOT NULL
UNION ALL
SELECT 1 AS task, hour, distance, arr_delay AS delay FROM flights WHERE arr_delay IS NOT NULL
