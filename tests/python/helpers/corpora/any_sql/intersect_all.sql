-- cases: intersect all
-- Each row as often as both sides have it: copies are numbered, and the numbers take part. DataFusion 53 runs INTERSECT ALL
-- as a semi join and returns too many rows (see ENGINE_IS_WRONG in test_any_sql.py), so the words themselves are not used here.
SELECT l_suppkey, l_shipmode
FROM (
    SELECT l_suppkey, l_shipmode, row_number() OVER (PARTITION BY l_suppkey, l_shipmode) AS copy
    FROM lineitem
    WHERE l_shipdate < DATE '1993-01-01'
    INTERSECT
    SELECT l_suppkey, l_shipmode, row_number() OVER (PARTITION BY l_suppkey, l_shipmode)
    FROM lineitem
    WHERE l_shipdate >= DATE '1998-06-01'
) AS copies
