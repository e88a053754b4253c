-- cases: group by, case and cast columns
-- Click-through style features: counts by kind as columns of their own, with a rate.
SELECT
    l_suppkey,
    sum(CASE WHEN l_shipmode = 'AIR' THEN 1 ELSE 0 END) AS by_air,
    sum(CASE WHEN l_shipmode = 'SHIP' THEN 1 ELSE 0 END) AS by_ship,
    sum(CASE WHEN l_shipmode = 'TRUCK' THEN l_quantity END) AS on_trucks,
    CAST(sum(CASE WHEN l_returnflag = 'R' THEN 1 ELSE 0 END) AS DOUBLE) / count(*) AS return_rate
FROM lineitem
GROUP BY l_suppkey
