-- cases: union all of non-local parts, group by, limit
-- Single lines beside aggregates and a window's rows in one training set.
SELECT l_orderkey AS id, l_quantity AS quantity, 'line' AS kind
FROM lineitem
WHERE l_shipmode = 'REG AIR' AND l_quantity > 49
UNION ALL
SELECT l_suppkey, max(l_quantity), 'supplier'
FROM lineitem
GROUP BY l_suppkey
UNION ALL
SELECT id, quantity, 'part'
FROM (
    SELECT
        l_partkey AS id,
        l_quantity AS quantity,
        row_number() OVER (PARTITION BY l_partkey ORDER BY l_shipdate, l_orderkey, l_linenumber) AS place
    FROM lineitem
) AS first_lines
WHERE place = 1
