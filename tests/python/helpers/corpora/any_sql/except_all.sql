-- cases: except all
-- Each row as often as the left side has it more than the right one, by numbered copies as in intersect_all.sql:
-- DataFusion 53 runs EXCEPT ALL as an anti join and returns too few rows (see ENGINE_IS_WRONG in test_any_sql.py).
SELECT l_suppkey, l_shipmode
FROM (
    SELECT l_suppkey, l_shipmode, row_number() OVER (PARTITION BY l_suppkey, l_shipmode) AS copy
    FROM lineitem
    WHERE l_shipdate < DATE '1993-01-01'
    EXCEPT
    SELECT l_suppkey, l_shipmode, row_number() OVER (PARTITION BY l_suppkey, l_shipmode)
    FROM lineitem
    WHERE l_shipdate >= DATE '1998-06-01'
) AS copies
