-- cases: anti join
-- Customers without an order, and without a supplier of the same balance class in their nation.
SELECT c_custkey, c_name, c_nationkey
FROM customer
WHERE NOT EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey)
    AND NOT EXISTS (
        SELECT 1
        FROM supplier
        WHERE s_nationkey = c_nationkey AND s_acctbal BETWEEN c_acctbal - 5 AND c_acctbal + 5
    )
