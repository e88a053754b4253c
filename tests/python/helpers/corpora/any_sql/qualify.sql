-- cases: qualify, row_number per class
-- A filter over a window without a subquery.
SELECT l_suppkey, l_orderkey, l_linenumber, l_extendedprice
FROM lineitem
WHERE l_shipmode = 'RAIL'
QUALIFY row_number() OVER (PARTITION BY l_suppkey ORDER BY l_extendedprice DESC, l_orderkey, l_linenumber) <= 2
