-- cases: right join, group by
-- The side that is kept is an aggregate.
SELECT o_custkey, orders, c_name, c_acctbal
FROM (SELECT c_custkey, c_name, c_acctbal FROM customer WHERE c_acctbal < 0) AS poor
RIGHT JOIN (SELECT o_custkey, count(*) AS orders FROM orders GROUP BY o_custkey) AS counted
    ON c_custkey = o_custkey
