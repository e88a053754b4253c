-- cases: frames
-- Frames by rows, also ones that look ahead, and by peers; and functions that pick a row of their frame.
SELECT
    l_orderkey,
    l_linenumber,
    avg(CAST(l_extendedprice AS DOUBLE)) OVER (
        PARTITION BY l_suppkey ORDER BY l_shipdate, l_orderkey, l_linenumber
        ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING
    ) AS before,
    max(l_quantity) OVER (
        PARTITION BY l_suppkey ORDER BY l_shipdate, l_orderkey, l_linenumber
        ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING
    ) AS ahead,
    count(*) OVER (
        PARTITION BY l_suppkey ORDER BY l_shipdate
        RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS with_peers,
    first_value(l_partkey) OVER (
        PARTITION BY l_suppkey ORDER BY l_shipdate, l_orderkey, l_linenumber
        ROWS BETWEEN 5 PRECEDING AND CURRENT ROW
    ) AS oldest,
    nth_value(l_partkey, 2) OVER (
        PARTITION BY l_suppkey ORDER BY l_shipdate, l_orderkey, l_linenumber
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    ) AS second
FROM lineitem
WHERE l_suppkey <= 100
