-- A view inside the query: named steps cost nothing, since the optimiser sees through them.
-- Tables: flights, weather
-- Loader: tq.create_dataloader(query, batch_size=256, shuffle=True, stack={"x": ["wind_speed", "visib"]})
-- Staged: nothing; windy hours are the small side of the join.
WITH windy AS (
    SELECT origin, time_hour, wind_speed, visib FROM weather WHERE wind_speed > 25
),
late AS (
    SELECT origin, time_hour, dep_delay FROM flights WHERE dep_delay > 60
)
SELECT late.dep_delay, windy.wind_speed, windy.visib
FROM late
INNER JOIN windy ON late.origin = windy.origin AND late.time_hour = windy.time_hour
