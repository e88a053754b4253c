SELECT id, row_number() OVER (PARTITION BY flag ORDER BY at DESC) AS r FROM t QUALIFY r = 1
