SELECT id, price * 2 AS p FROM t WHERE day >= '2024-01-01' AND flag
