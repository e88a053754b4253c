-- The inputs of a ranking model: stable ids by hash, buckets of the distance, the hour and the weekday on circles, and a
-- weight that halves with each thirty days before the end of the year.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=4096, shuffle=True, stack={"dense": ["hour_sin", "hour_cos", "week_sin", "week_cos"], "ids": ["carrier", "route", "plane", "far"]}, nulls={"plane": 0})
-- Staged: nothing.
SELECT
    hash64(carrier, 1, 1000) AS carrier,
    hash64(origin || '-' || dest, 2, 1000) AS route,
    1 + hash64(tailnum, 3, 10000) AS plane,
    bucketize(distance, [250, 500, 1000, 2500]) AS far,
    cyclic_sin(hour, 24) AS hour_sin,
    cyclic_cos(hour, 24) AS hour_cos,
    cyclic_sin(make_date(year, month, day), INTERVAL '7 days') AS week_sin,
    cyclic_cos(make_date(year, month, day), INTERVAL '7 days') AS week_cos,
    CAST(time_decay(make_date(year, month, day), DATE '2013-12-31', INTERVAL '30 days') AS REAL) AS weight,
    CAST(arr_delay > 15 AS REAL) AS label
FROM flights
WHERE arr_delay IS NOT NULL
