-- cases: scalar subquery
-- A count that depends on the row is 0 and not null where there is nothing.
SELECT s_suppkey, (SELECT count(*) FROM customer WHERE c_nationkey = s_nationkey AND c_acctbal > 9900) AS rich
FROM supplier
