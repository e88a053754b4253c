-- cases: except
-- Negative sampling: what could have been ordered by a customer of a nation, and never was.
SELECT n_nationkey, p_partkey
FROM nation CROSS JOIN part
WHERE p_size = 15
EXCEPT
SELECT c_nationkey, l_partkey
FROM customer
JOIN orders ON c_custkey = o_custkey
JOIN lineitem ON o_orderkey = l_orderkey
