-- Sliding windows as sequences: for each flight, the delays of up to eight earlier flights of the same aircraft, oldest
-- first, as a jagged tensor. A sequence model reads from it how a delay is carried on.
-- array_agg runs once for each aircraft, and every flight takes its slice: cheaper than a window for each flight.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=512, shuffle=True)
-- Staged: all rows, since each one needs its place among the flights of its aircraft.
WITH legs AS (
    SELECT
        tailnum,
        to_unixtime(time_hour) + minute * 60 AS departs,
        CAST(arr_delay AS REAL) AS delay,
        CAST(row_number() OVER (
            PARTITION BY tailnum ORDER BY time_hour, minute, carrier, flight, origin, dest
        ) AS BIGINT) AS place
    FROM flights
    WHERE tailnum IS NOT NULL AND arr_delay IS NOT NULL
),
aircraft AS (
    SELECT
        tailnum,
        array_agg(delay ORDER BY place) AS delays,
        array_agg(departs ORDER BY place) AS departures
    FROM legs
    GROUP BY tailnum
)
SELECT
    l.tailnum,
    l.departs,
    array_slice(a.delays, greatest(l.place - 8, 1), l.place - 1) AS delays,
    array_slice(a.departures, greatest(l.place - 8, 1), l.place - 1) AS departures,
    CAST(l.delay > 15 AS REAL) AS label
FROM legs AS l
INNER JOIN aircraft AS a ON l.tailnum = a.tailnum
WHERE l.place > 1
