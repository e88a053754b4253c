-- cases: row_number per class
-- The same number of rows of every class, chosen by a hash of the key: balanced, and always the same ones.
SELECT l_orderkey, l_linenumber, l_shipmode, l_returnflag
FROM (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY l_returnflag, l_shipmode
            ORDER BY md5(concat(CAST(l_orderkey AS VARCHAR), '/', CAST(l_linenumber AS VARCHAR)))
        ) AS draw
    FROM lineitem
) AS drawn
WHERE draw <= 100
