-- Label smoothing by a window: 0 or 1 says little about a flight that was 16 minutes late. A fifth of the target is the mean
-- over up to 41 flights of the same carrier and origin (20 before, itself, 20 after). For training only: targets look ahead.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=2048, shuffle=True, stack={"x": ["hour", "month", "distance"]})
-- Staged: all rows, since each one needs its neighbours.
WITH labelled AS (
    SELECT
        carrier, origin, dest, flight, month, hour, distance,
        to_unixtime(time_hour) + minute * 60 AS departs,
        CAST(arr_delay > 15 AS DOUBLE) AS label
    FROM flights
    WHERE arr_delay IS NOT NULL
)
SELECT
    hour, month, distance, label,
    CAST(0.8 * label + 0.2 * avg(label) OVER (
        PARTITION BY carrier, origin ORDER BY departs, flight, dest
        ROWS BETWEEN 20 PRECEDING AND 20 FOLLOWING
    ) AS REAL) AS target
FROM labelled
