WITH recent AS (SELECT * FROM t WHERE at > now() - INTERVAL '1 day') SELECT * FROM recent UNION ALL SELECT * FROM t
