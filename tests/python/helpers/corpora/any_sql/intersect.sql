-- cases: intersect
-- Parts that were both returned and shipped by air, each once however often.
SELECT l_partkey, l_suppkey FROM lineitem WHERE l_returnflag = 'R'
INTERSECT
SELECT l_partkey, l_suppkey FROM lineitem WHERE l_shipmode = 'AIR'
