-- cases: filter and projection above an aggregate
-- What is above an aggregate is local again.
SELECT l_suppkey, revenue / lines AS per_line, CASE WHEN lines > 620 THEN 1 ELSE 0 END AS label, upper(mode) AS mode
FROM (
    SELECT l_suppkey, sum(CAST(l_extendedprice AS DOUBLE)) AS revenue, count(*) AS lines, min(l_shipmode) AS mode
    FROM lineitem
    GROUP BY l_suppkey
) AS totals
WHERE revenue > 20000000 AND lines % 2 = 0
