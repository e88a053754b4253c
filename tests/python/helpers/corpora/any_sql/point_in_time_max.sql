-- cases: point in time, group by
-- ASOF in standard SQL: the time of the last one before by an aggregate, and its row by an equality.
SELECT latest.l_orderkey, latest.l_linenumber, latest.known, stock.price
FROM (
    SELECT l_orderkey, l_linenumber, l_suppkey, max(o_orderdate) AS known
    FROM lineitem
    JOIN (SELECT DISTINCT o_custkey % 1000 + 1 AS supplier, o_orderdate FROM orders) AS news
        ON l_suppkey = supplier AND o_orderdate <= l_shipdate
    WHERE l_shipdate >= DATE '1998-08-01'
    GROUP BY l_orderkey, l_linenumber, l_suppkey
) AS latest
JOIN (
    SELECT o_custkey % 1000 + 1 AS supplier, o_orderdate AS known, max(o_totalprice) AS price
    FROM orders
    GROUP BY o_custkey % 1000 + 1, o_orderdate
) AS stock ON stock.supplier = latest.l_suppkey AND stock.known = latest.known
