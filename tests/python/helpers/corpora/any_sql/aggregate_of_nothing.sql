-- cases: empty result, group by
-- An aggregate without groups gives a row of no rows, too.
SELECT count(*) AS lines, sum(l_quantity) AS quantity, max(l_shipdate) AS day FROM lineitem WHERE l_quantity < 0
