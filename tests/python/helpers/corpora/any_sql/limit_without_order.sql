-- cases: limit, offset
-- Without an order the rows of a LIMIT are the engine's choice, but how many there are is not.
SELECT count(*) AS customers, min(c_custkey) > 0 AS real
FROM (SELECT c_custkey FROM customer LIMIT 1234 OFFSET 77) AS page
UNION ALL
SELECT count(*), TRUE
FROM (SELECT c_custkey FROM customer OFFSET 14990) AS rest
