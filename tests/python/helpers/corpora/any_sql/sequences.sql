-- cases: sequences
-- Sequences of items and of times, in order: one row per customer, jagged.
SELECT
    o_custkey,
    array_agg(o_orderkey ORDER BY o_orderdate, o_orderkey) AS orders,
    array_agg(CAST(o_totalprice AS DOUBLE) ORDER BY o_orderdate, o_orderkey) AS prices,
    array_agg(o_orderpriority ORDER BY o_orderdate, o_orderkey) AS priorities
FROM orders
GROUP BY o_custkey
