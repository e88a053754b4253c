-- cases: aggregate joined back
-- Mean target encoding: a category becomes the mean label of the other rows that have it.
SELECT
    l.l_orderkey,
    l.l_linenumber,
    (means.labels - CASE WHEN l.l_returnflag = 'R' THEN 1 ELSE 0 END) * CAST(1 AS DOUBLE)
        / greatest(means.lines - 1, 1) AS part_encoded,
    CASE WHEN l.l_returnflag = 'R' THEN 1 ELSE 0 END AS label
FROM lineitem AS l
JOIN (
    SELECT l_partkey, count(*) AS lines, sum(CASE WHEN l_returnflag = 'R' THEN 1 ELSE 0 END) AS labels
    FROM lineitem
    GROUP BY l_partkey
) AS means ON l.l_partkey = means.l_partkey
WHERE l.l_shipdate < DATE '1995-01-01'
