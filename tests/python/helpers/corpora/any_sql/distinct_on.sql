-- cases: distinct on, order by
-- Deduplication: the newest order of each customer.
SELECT DISTINCT ON (o_custkey) o_custkey, o_orderkey, o_orderdate, o_totalprice
FROM orders
ORDER BY o_custkey, o_orderdate DESC, o_orderkey DESC
