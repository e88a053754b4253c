-- Files named in the query itself, without registering a table: the last three months.
SELECT carrier, origin, dest, air_time / distance AS minutes_per_mile
FROM '.demo/flights/2013-1*.parquet'
WHERE air_time IS NOT NULL
