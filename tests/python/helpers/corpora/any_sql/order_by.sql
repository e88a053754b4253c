-- cases: order by
-- A curriculum: all rows, the easy ones first, by several keys, expressions, and nulls where they are said to be.
SELECT o_orderkey, o_totalprice, nullif(o_orderstatus, 'O') AS status
FROM orders
ORDER BY status DESC NULLS FIRST, length(o_comment), o_totalprice DESC, o_orderkey
