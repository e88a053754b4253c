-- Deduplication: each flight number of a carrier between two airports once, with its latest schedule.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle=True, output_format="numpy")
-- Staged: all rows, since the newest of a group is known only when all were seen.
WITH ranked AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY carrier, flight, origin, dest ORDER BY time_hour DESC, minute DESC
        ) AS place
    FROM flights
)
SELECT carrier, flight, origin, dest, time_hour, minute, distance
FROM ranked
WHERE place = 1
