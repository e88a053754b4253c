-- cases: order by, limit
-- The hardest thousand.
SELECT l_orderkey, l_linenumber, l_extendedprice * (1 - l_discount) AS price
FROM lineitem
ORDER BY price DESC, l_orderkey, l_linenumber
LIMIT 1000
