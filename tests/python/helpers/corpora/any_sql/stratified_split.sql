-- cases: row_number per class, group by
-- Train, validation and test in the same proportions in every class, by the hash of a key.
SELECT
    c_custkey,
    c_mktsegment,
    CASE
        WHEN percent_rank() OVER by_hash < 0.8 THEN 'train'
        WHEN percent_rank() OVER by_hash < 0.9 THEN 'validation'
        ELSE 'test'
    END AS part
FROM customer
WINDOW by_hash AS (PARTITION BY c_mktsegment ORDER BY md5(CAST(c_custkey AS VARCHAR)))
