-- cases: nested ctes, group by, running sum
-- Steps with names, one used twice, and one within another.
WITH spending AS (
    SELECT o_custkey AS customer, sum(o_totalprice) AS spent, count(*) AS orders FROM orders GROUP BY o_custkey
),
joined AS (
    WITH rich AS (SELECT customer, spent, orders FROM spending WHERE spent > 2000000)
    SELECT c_custkey, c_nationkey, spent, orders FROM rich JOIN customer ON customer = c_custkey
),
nations AS (
    SELECT c_nationkey, sum(spent) AS total FROM joined GROUP BY c_nationkey
)
SELECT
    c_custkey,
    n_name,
    spent,
    total,
    (SELECT count(*) FROM spending) AS buyers,
    rank() OVER (PARTITION BY n_name ORDER BY spent DESC, c_custkey) AS place
FROM joined
JOIN nations ON joined.c_nationkey = nations.c_nationkey
JOIN nation ON joined.c_nationkey = n_nationkey
