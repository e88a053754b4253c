-- cases: big join
-- The two largest tables, all rows.
SELECT l_orderkey, l_linenumber, o_custkey, l_extendedprice, o_totalprice, l_shipdate
FROM lineitem JOIN orders ON l_orderkey = o_orderkey
