-- cases: range join, cross join
-- A join without an equality.
SELECT n_name, s_suppkey, p_partkey
FROM nation
CROSS JOIN (SELECT * FROM supplier WHERE s_suppkey % 50 = 0) AS s
JOIN (SELECT * FROM part WHERE p_partkey % 500 = 0) AS p ON s_acctbal < p_retailprice AND s_acctbal > n_nationkey * 40
