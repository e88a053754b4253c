SELECT * FROM (VALUES (1, 'x'), (2, NULL)) AS v(a, b) CROSS JOIN t
