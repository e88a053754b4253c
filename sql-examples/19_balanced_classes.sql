-- Class balancing: on time, late and cancelled flights in equal numbers, as many of each as there are of the rarest class.
-- A hash chooses them, so every run has the same sample.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle="global", stack={"x": ["month", "hour", "distance"]})
-- Staged: all rows, since the size of a class is known only when all were seen.
WITH classed AS (
    SELECT
        month, hour, distance,
        CASE WHEN arr_delay IS NULL THEN 2 WHEN arr_delay > 15 THEN 1 ELSE 0 END AS outcome,
        md5(concat_ws('/', carrier, flight, origin, year, month, day, sched_dep_time)) AS hash
    FROM flights
),
ranked AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY outcome ORDER BY hash) AS place
    FROM classed
)
SELECT month, hour, distance, outcome
FROM ranked
WHERE place <= (
    SELECT min(size) FROM (SELECT count(*) AS size FROM classed GROUP BY outcome)
)
