-- cases: order by, limit, offset
-- A page from the middle.
SELECT c_custkey, c_name, c_acctbal
FROM customer
WHERE c_acctbal > 0
ORDER BY c_acctbal, c_custkey
LIMIT 321 OFFSET 4567
