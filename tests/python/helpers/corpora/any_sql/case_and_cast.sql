-- cases: case and cast columns
-- Nothing that needs a stage: casts, CASE, arithmetic, dates and null handling, row by row.
SELECT
    l_orderkey,
    CAST(l_quantity AS REAL) AS quantity,
    CAST(floor(l_extendedprice) AS INTEGER) AS price,
    CASE l_returnflag WHEN 'R' THEN 0 WHEN 'A' THEN 1 ELSE 2 END AS label,
    extract(MONTH FROM l_shipdate) AS month,
    l_receiptdate - l_commitdate AS days_late,
    coalesce(nullif(l_linestatus, 'O'), 'open') AS status,
    abs(CAST(l_discount AS DOUBLE) - 0.05) AS off,
    CAST(l_linenumber AS VARCHAR) AS line
FROM lineitem
WHERE l_shipinstruct <> 'NONE'
