-- cases: unnest above an aggregate, sequences
-- Sequences that are made, cut and taken apart again.
SELECT l_orderkey, unnest(parts) AS part, lines
FROM (
    SELECT l_orderkey, array_agg(l_partkey ORDER BY l_linenumber) AS parts, count(*) AS lines
    FROM lineitem
    GROUP BY l_orderkey
) AS baskets
WHERE lines >= 6
