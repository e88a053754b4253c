-- cases: running sum, frames
-- A label smoothed by the rates of its class and of everything, without an aggregate that loses the rows.
SELECT
    l_orderkey,
    l_linenumber,
    0.8 * CASE WHEN l_returnflag = 'R' THEN 1.0 ELSE 0.0 END
        + 0.15 * avg(CASE WHEN l_returnflag = 'R' THEN CAST(1 AS DOUBLE) ELSE CAST(0 AS DOUBLE) END)
            OVER (PARTITION BY l_shipmode)
        + 0.05 * avg(CASE WHEN l_returnflag = 'R' THEN CAST(1 AS DOUBLE) ELSE CAST(0 AS DOUBLE) END)
            OVER () AS label
FROM lineitem
WHERE l_shipdate < DATE '1993-01-01'
