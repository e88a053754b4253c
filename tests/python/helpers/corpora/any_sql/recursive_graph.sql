-- cases: recursive cte, group by
-- Which parts are reached from one through orders that have both: a walk of two steps over a large table.
WITH RECURSIVE reached AS (
    SELECT CAST(1 AS BIGINT) AS part, 0 AS step
    UNION ALL
    SELECT other.l_partkey, step + 1
    FROM reached
    JOIN lineitem AS mine ON mine.l_partkey = part
    JOIN lineitem AS other ON other.l_orderkey = mine.l_orderkey
    WHERE step < 2
)
SELECT part, min(step) AS distance FROM reached GROUP BY part
