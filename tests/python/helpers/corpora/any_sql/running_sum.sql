-- cases: running sum
-- What a customer had spent before and up to each order, and the part of all that he ever will.
SELECT
    o_orderkey,
    sum(o_totalprice) OVER up_to AS spent,
    count(*) OVER up_to AS orders,
    CAST(sum(o_totalprice) OVER up_to AS DOUBLE)
        / CAST(sum(o_totalprice) OVER (PARTITION BY o_custkey) AS DOUBLE) AS part
FROM orders
WINDOW up_to AS (
    PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)
