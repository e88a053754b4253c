-- A curriculum: easy examples first. ORDER BY is delivered in its order as long as nothing shuffles it. Here flights far from
-- the border between on time and late come first, and those at the border last.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=4096, stack={"x": ["month", "hour", "distance"]})
-- Staged: all rows, since a sort looks at them together.
SELECT
    month, hour, distance,
    abs(arr_delay - 15) AS margin,
    CAST(arr_delay > 15 AS REAL) AS label
FROM flights
WHERE arr_delay IS NOT NULL
ORDER BY margin DESC, time_hour, carrier, flight, origin
