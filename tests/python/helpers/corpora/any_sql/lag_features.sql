-- cases: lag
-- What a customer's three orders before cost, the one after as the label, and the days since the last.
SELECT
    o_orderkey,
    lag(o_totalprice, 1) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS price_1,
    lag(o_totalprice, 2) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS price_2,
    coalesce(
        lag(o_totalprice, 3) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey), 0
    ) AS price_3,
    o_orderdate - lag(o_orderdate) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS days,
    lead(o_totalprice) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS label
FROM orders
