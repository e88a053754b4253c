-- cases: not in
-- NOT IN over values without nulls.
SELECT c_custkey, c_nationkey
FROM customer
WHERE c_custkey NOT IN (SELECT o_custkey FROM orders WHERE o_orderdate >= DATE '1993-01-01')
