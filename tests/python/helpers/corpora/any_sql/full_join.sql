-- cases: full join
-- Both sides have rows without a partner.
SELECT c_custkey, c_acctbal, s_suppkey, s_acctbal
FROM (SELECT * FROM customer WHERE c_mktsegment = 'MACHINERY') AS c
FULL JOIN (SELECT * FROM supplier WHERE s_acctbal > 1000) AS s
    ON c_nationkey = s_nationkey AND c_custkey % 50 = s_suppkey % 50
