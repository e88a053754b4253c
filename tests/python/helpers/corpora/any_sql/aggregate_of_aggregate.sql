-- cases: group by, filter and projection above an aggregate
-- How many customers have how many orders, by segment.
SELECT c_mktsegment, orders, count(*) AS customers
FROM customer
JOIN (SELECT o_custkey, count(*) AS orders FROM orders GROUP BY o_custkey) AS counted ON c_custkey = o_custkey
GROUP BY c_mktsegment, orders
