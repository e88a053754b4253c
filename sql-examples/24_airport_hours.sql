-- Forecasting with windows: how many flights leave an airport in each of the next twelve hours, from the last two days of
-- departures and delays there. A window begins every six hours; its rows are read once.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=256, shuffle=True, windows=tq.Windows(by="origin", order="hour", size=48, stride=6, horizon=12, target="departures"))
-- Staged: all rows, one for each airport and hour, in the order of the windows.
WITH calendar AS (
    -- Hours in which nothing leaves count as well.
    SELECT unnest(generate_series(min(time_hour), max(time_hour), INTERVAL '1 hour')) AS hour FROM flights
),
airports AS (
    SELECT DISTINCT origin FROM flights
),
departed AS (
    SELECT origin, time_hour AS hour, count(*) AS departures, avg(dep_delay) AS delay
    FROM flights
    GROUP BY origin, time_hour
)
SELECT
    a.origin,
    c.hour,
    CAST(COALESCE(d.departures, 0) AS REAL) AS departures,
    CAST(COALESCE(d.delay, 0) AS REAL) AS delay
FROM airports AS a
CROSS JOIN calendar AS c
LEFT JOIN departed AS d ON a.origin = d.origin AND c.hour = d.hour
ORDER BY a.origin, c.hour
