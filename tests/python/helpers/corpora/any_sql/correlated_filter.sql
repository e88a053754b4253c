-- cases: scalar subquery, correlated filter
-- Lines of far more than is usual for their part.
SELECT l_orderkey, l_linenumber, l_partkey, l_quantity
FROM lineitem AS l
WHERE l_quantity > (
    SELECT 1.8 * avg(CAST(m.l_quantity AS DOUBLE)) FROM lineitem AS m WHERE m.l_partkey = l.l_partkey
)
