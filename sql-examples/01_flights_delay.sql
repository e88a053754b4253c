-- The demo's training set: will a flight arrive more than 15 minutes late, judged as it leaves the gate?
-- Flights are the driving scan; weather, planes and airlines are small and joined to each row on every shard.
-- No output is null: flights without an arrival are left out, and unknown planes and pressures get a default.
-- Tables: flights, weather, planes, airlines
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle=True, stack={"season": ["season_sin", "season_cos"], "time": ["time_sin", "time_cos"]})
-- Staged: nothing; flights are read split by split, and the other tables are the small sides of joins.
SELECT
    f.month,
    f.day,
    -- 0 to 15, for an embedding
    CAST((strpos('9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV', f.carrier) - 1) / 3.0 AS INTEGER) AS carrier,
    CAST(sin(2 * pi() * (f.hour * 60 + f.minute) / 1440.0) AS REAL) AS time_sin,
    CAST(cos(2 * pi() * (f.hour * 60 + f.minute) / 1440.0) AS REAL) AS time_cos,
    CAST(sin(2 * pi() * f.month / 12.0) AS REAL) AS season_sin,
    CAST(cos(2 * pi() * f.month / 12.0) AS REAL) AS season_cos,
    CAST(date_part('dow', make_date(f.year, f.month, f.day)) IN (0, 6) AS REAL) AS weekend,
    CAST(f.dep_delay / 60 AS REAL) AS hours_behind,
    CAST(f.distance / 1000 AS REAL) AS distance,
    CAST(f.origin = 'EWR' AS REAL) AS from_newark,
    CAST(f.origin = 'JFK' AS REAL) AS from_kennedy,
    CAST(COALESCE(w.temp, 55.0) AS REAL) AS temp,
    CAST(COALESCE(w.humid, 62.0) AS REAL) AS humid,
    CAST(COALESCE(w.wind_speed, 10.0) AS REAL) AS wind_speed,
    CAST(COALESCE(w.wind_gust, w.wind_speed, 10.0) AS REAL) AS wind_gust,
    CAST(COALESCE(w.precip, 0.0) AS REAL) AS precip,
    CAST(COALESCE(w.pressure, 1018.0) - 1018.0 AS REAL) AS pressure,
    CAST(COALESCE(w.visib, 10.0) AS REAL) AS visib,
    CAST(COALESCE(2013 - p.year, 11) AS REAL) AS plane_age,
    CAST(COALESCE(p.seats, 137) AS REAL) AS seats,
    CAST(p.tailnum IS NULL AS REAL) AS plane_unknown,
    CAST(CASE
        WHEN a.name LIKE 'ExpressJet%' OR a.name LIKE 'Endeavor%' OR a.name LIKE 'Envoy%'
            OR a.name LIKE 'Mesa%' OR a.name LIKE 'SkyWest%' THEN 1
        ELSE 0
    END AS REAL) AS regional,
    CAST(CASE WHEN f.arr_delay > 15 THEN 1 ELSE 0 END AS REAL) AS label
FROM flights AS f
INNER JOIN weather AS w ON f.origin = w.origin AND f.time_hour = w.time_hour
INNER JOIN airlines AS a ON f.carrier = a.carrier
LEFT JOIN planes AS p ON f.tailnum = p.tailnum
WHERE f.arr_delay IS NOT NULL
