-- cases: group by, having
-- Suppliers that shipped much of a part, by two keys.
SELECT l_partkey, l_suppkey, count(*) AS lines, sum(l_quantity) AS quantity, max(l_shipdate) AS last_shipped
FROM lineitem
GROUP BY l_partkey, l_suppkey
HAVING count(*) >= 5 AND sum(l_quantity) > 150
