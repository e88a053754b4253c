-- cases: left join
-- Every customer, with his orders where there are any: a third of them has none.
SELECT c_custkey, c_acctbal, o_orderkey, o_totalprice
FROM customer LEFT JOIN orders ON c_custkey = o_custkey AND o_orderdate >= DATE '1997-01-01'
