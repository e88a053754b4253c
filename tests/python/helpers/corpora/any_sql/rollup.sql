-- cases: rollup
-- Subtotals by prefix of the keys; the nulls of a subtotal are told from others by grouping().
SELECT
    n_name,
    c_mktsegment,
    grouping(n_name) AS all_nations,
    grouping(c_mktsegment) AS all_segments,
    count(*) AS customers,
    sum(c_acctbal) AS balance
FROM customer JOIN nation ON c_nationkey = n_nationkey
GROUP BY ROLLUP (n_name, c_mktsegment)
