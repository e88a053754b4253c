-- cases: union all of non-local parts, group by
-- No part of it is local.
SELECT 'day' AS unit, o_orderdate AS since, count(*) AS orders FROM orders GROUP BY o_orderdate
UNION ALL
SELECT 'month', CAST(date_trunc('month', o_orderdate) AS DATE), count(*)
FROM orders
GROUP BY date_trunc('month', o_orderdate)
