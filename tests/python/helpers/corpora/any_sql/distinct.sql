-- cases: distinct
-- Which parts were ordered by customers of which nation.
SELECT DISTINCT c_nationkey, l_partkey
FROM customer
JOIN orders ON c_custkey = o_custkey
JOIN lineitem ON o_orderkey = l_orderkey
WHERE l_quantity >= 45
