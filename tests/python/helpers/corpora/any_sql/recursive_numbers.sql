-- cases: recursive cte, left join
-- A calendar, so that days without a row have one. (The columns are named in the first SELECT: DataFusion 53 does not find
-- names that are given to the table, days (day), in its recursive part.)
WITH RECURSIVE days AS (
    SELECT DATE '1995-01-01' AS day
    UNION ALL
    SELECT CAST(day + INTERVAL '1' DAY AS DATE) FROM days WHERE day < DATE '1995-12-31'
)
SELECT day, count(o_orderkey) AS orders
FROM days LEFT JOIN orders ON o_orderdate = day AND o_totalprice > 350000
GROUP BY day
