-- A view inside of the query: named steps cost nothing, since the optimiser sees through them.
WITH windy AS (
    SELECT origin, time_hour, wind_speed, visib FROM weather WHERE wind_speed > 25
),
late AS (
    SELECT origin, time_hour, dep_delay FROM flights WHERE dep_delay > 60
)
SELECT late.dep_delay, windy.wind_speed, windy.visib
FROM late
INNER JOIN windy ON late.origin = windy.origin AND late.time_hour = windy.time_hour
