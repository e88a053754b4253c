-- cases: volatile functions
-- Drawn once and not again by every rank: a permutation that each rank made for itself would lose and repeat rows.
SELECT o_orderkey, CASE WHEN place > 0 THEN 1 ELSE 0 END AS drawn
FROM (
    SELECT o_orderkey, row_number() OVER (ORDER BY draw) AS place
    FROM (SELECT o_orderkey, random() AS draw FROM orders) AS drawn
) AS shuffled
