-- cases: empty result, row_number per class
-- No row comes in, so none comes out.
SELECT o_orderkey, row_number() OVER (PARTITION BY o_custkey ORDER BY o_orderkey) AS place
FROM orders
WHERE o_totalprice < 0
