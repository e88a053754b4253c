-- cases: not in with nulls
-- Nulls make NOT IN unknown: one on the right refuses every row, one on the left that row unless the right is empty.
WITH c AS (SELECT c_custkey, max(nullif(c_nationkey, 7)) AS nation FROM customer GROUP BY c_custkey)
SELECT 'null on the right' AS which, c_custkey
FROM c
WHERE c_custkey NOT IN (SELECT nullif(o_custkey, 4) FROM orders)
UNION ALL
SELECT 'null on the left', c_custkey
FROM c
WHERE nation NOT IN (SELECT s_nationkey FROM supplier WHERE s_nationkey < 5)
UNION ALL
SELECT 'nothing on the right', c_custkey
FROM c
WHERE nation NOT IN (SELECT s_nationkey FROM supplier WHERE s_nationkey < 0)
