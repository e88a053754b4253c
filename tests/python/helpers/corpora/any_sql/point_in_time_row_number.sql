-- cases: point in time
-- ASOF in standard SQL: each order with the customer's last one before it, by row_number.
SELECT o_orderkey, o_orderdate, before_key, before_price
FROM (
    SELECT
        o.o_orderkey,
        o.o_orderdate,
        p.o_orderkey AS before_key,
        p.o_totalprice AS before_price,
        row_number() OVER (PARTITION BY o.o_orderkey ORDER BY p.o_orderdate DESC, p.o_orderkey DESC) AS place
    FROM orders AS o
    LEFT JOIN orders AS p ON o.o_custkey = p.o_custkey AND p.o_orderdate < o.o_orderdate
    WHERE o.o_orderdate >= DATE '1998-01-01'
) AS pairs
WHERE place = 1
