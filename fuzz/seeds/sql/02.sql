SELECT text, count(*) FROM t GROUP BY text HAVING count(*) > 1 ORDER BY 2 DESC LIMIT 3
