-- A point-in-time feature join: the last weather observation when the forecast was made, an hour before departure, and no
-- more than three hours old. No later observation is seen; without one, the features are NaN.
-- `tq.asof_join` wrote the text below, with `left` being the SELECT over flights; docs/point-in-time.md explains it.
-- Made by: tq.asof_join(left, "weather", left_on="decided", right_on="time_hour", by="origin", columns=["temp", "wind_speed", "visib"], tolerance="3 hours")
-- Tables: flights, weather
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle=True, nulls="nan", stack={"x": ["temp", "wind_speed", "visib"]})
-- Staged: the flights with the number of their observation; the observations themselves are the small side of a join.
SELECT l.* EXCEPT ("__asof_key_0", "__asof_time", "__asof_side", "__asof_row", "__asof_match"), r."__asof_value_0" AS "temp", r."__asof_value_1" AS "wind_speed", r."__asof_value_2" AS "visib"
FROM (
  SELECT * FROM (
    SELECT *, max("__asof_row") OVER (
      PARTITION BY "__asof_key_0" ORDER BY "__asof_time" ASC NULLS FIRST, "__asof_side"
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS "__asof_match"
    FROM (
      SELECT l.*, l."origin" AS "__asof_key_0", l."decided" AS "__asof_time", 1 AS "__asof_side"
      FROM (
SELECT
    flight, origin, hour, distance,
    to_timestamp_millis((to_unixtime(time_hour) + minute * 60 - 3600) * 1000) AS decided,
    CAST(arr_delay > 15 AS REAL) AS label
FROM flights
WHERE arr_delay IS NOT NULL
) AS l
      UNION ALL BY NAME
      SELECT r."origin" AS "__asof_key_0", r."time_hour" AS "__asof_time", 0 AS "__asof_side", row_number() OVER (ORDER BY r."time_hour" ASC, r."temp" ASC NULLS FIRST, r."wind_speed" ASC NULLS FIRST, r."visib" ASC NULLS FIRST) AS "__asof_row"
      FROM "weather" AS r
      WHERE r."origin" IS NOT NULL AND r."time_hour" IS NOT NULL
    )
  ) WHERE "__asof_side" = 1
) AS l
LEFT JOIN (
  SELECT r."time_hour" AS "__asof_time", r."temp" AS "__asof_value_0", r."wind_speed" AS "__asof_value_1", r."visib" AS "__asof_value_2", row_number() OVER (ORDER BY r."time_hour" ASC, r."temp" ASC NULLS FIRST, r."wind_speed" ASC NULLS FIRST, r."visib" ASC NULLS FIRST) AS "__asof_row"
  FROM "weather" AS r
  WHERE r."origin" IS NOT NULL AND r."time_hour" IS NOT NULL
) AS r
ON l."__asof_match" = r."__asof_row" AND r."__asof_time" >= l."__asof_time" - INTERVAL '3 hours'
