-- Sessions: the flights of an aircraft belong together until it is away for more than two days. Each such rotation is a row,
-- with its flights as sequences of one length.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=128, shuffle=True, pad={"distances": (0.0, 32), "waits": (0.0, 32)})
-- Staged: all rows, one for each group.
WITH legs AS (
    SELECT
        tailnum, carrier, flight, distance,
        to_unixtime(time_hour) + minute * 60 AS departs
    FROM flights
    WHERE tailnum IS NOT NULL
),
waits AS (
    SELECT
        *,
        departs - lag(departs) OVER (PARTITION BY tailnum ORDER BY departs, carrier, flight) AS wait
    FROM legs
),
sessions AS (
    SELECT
        *,
        sum(CASE WHEN wait > 2 * 86400 THEN 1 ELSE 0 END) OVER (
            PARTITION BY tailnum ORDER BY departs, carrier, flight
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS rotation
    FROM waits
)
SELECT
    tailnum,
    CAST(rotation AS INTEGER) AS rotation,
    CAST(count(*) AS INTEGER) AS flights,
    CAST((max(departs) - min(departs)) / 3600.0 AS REAL) AS hours,
    array_agg(CAST(distance AS REAL) ORDER BY departs, carrier, flight) AS distances,
    array_agg(
        CAST(CASE WHEN wait <= 2 * 86400 THEN wait / 3600.0 ELSE 0 END AS REAL) ORDER BY departs, carrier, flight
    ) AS waits
FROM sessions
GROUP BY tailnum, rotation
HAVING count(*) BETWEEN 2 AND 32
