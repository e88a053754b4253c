-- cases: self join
-- Pairs of lines of an order: the anchor, and another part bought with it.
SELECT a.l_orderkey, a.l_partkey AS anchor, b.l_partkey AS positive
FROM lineitem AS a JOIN lineitem AS b ON a.l_orderkey = b.l_orderkey AND a.l_linenumber < b.l_linenumber
WHERE a.l_shipdate < DATE '1993-01-01'
