-- cases: grouping sets
-- Two keys each alone, both together, and the total.
SELECT o_orderpriority, o_orderstatus, count(*) AS orders, max(o_totalprice) AS dearest
FROM orders
GROUP BY GROUPING SETS ((o_orderpriority), (o_orderstatus), (o_orderpriority, o_orderstatus), ())
