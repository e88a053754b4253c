-- cases: ntile
-- Quantile buckets of a number as a class, over all rows and within a group.
SELECT
    c_custkey,
    ntile(10) OVER (ORDER BY c_acctbal, c_custkey) AS decile,
    ntile(4) OVER (PARTITION BY c_mktsegment ORDER BY c_acctbal, c_custkey) AS quartile_of_segment
FROM customer
