-- cases: exists
-- EXISTS inside of an OR, where it is no join that filters. (As a value, in a SELECT list or a CASE, DataFusion 53 says
-- that it does not support it.)
SELECT c_custkey, c_acctbal
FROM customer
WHERE c_acctbal > 9000
    OR EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey AND o_orderpriority = '1-URGENT')
    OR NOT EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey)
