-- cases: union
-- Keys that either side has, each once.
SELECT o_custkey AS id FROM orders WHERE o_totalprice > 300000
UNION
SELECT c_custkey FROM customer WHERE c_acctbal > 9000
