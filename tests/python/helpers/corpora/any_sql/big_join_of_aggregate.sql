-- cases: big join, left join, group by
-- Each line with its order, and with what its supplier has of its part.
SELECT l_orderkey, l_linenumber, o_orderdate, available, o_totalprice - rest AS part_of_order
FROM lineitem
JOIN orders ON l_orderkey = o_orderkey
LEFT JOIN (
    SELECT ps_partkey, ps_suppkey, sum(ps_availqty) AS available
    FROM partsupp
    WHERE ps_supplycost < 900
    GROUP BY ps_partkey, ps_suppkey
) AS stock ON l_partkey = ps_partkey AND l_suppkey = ps_suppkey
JOIN (
    SELECT l_orderkey AS key, sum(l_extendedprice) AS rest FROM lineitem GROUP BY l_orderkey
) AS totals ON l_orderkey = key
WHERE l_shipdate >= DATE '1997-06-01'
