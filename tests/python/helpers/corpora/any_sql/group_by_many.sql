-- cases: group by
-- As many groups as a twentieth of a large table has rows, with the kinds of aggregates that features are made of.
SELECT
    l_partkey,
    count(DISTINCT l_suppkey) AS suppliers,
    count(*) FILTER (WHERE l_returnflag = 'R') AS returned,
    min(l_extendedprice) AS cheapest,
    avg(CAST(l_discount AS DOUBLE)) AS discount,
    stddev_samp(CAST(l_quantity AS DOUBLE)) AS spread,
    bool_or(l_shipmode = 'AIR') AS by_air
FROM lineitem
GROUP BY l_partkey
