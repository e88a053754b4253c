-- cases: in
-- IN with an aggregate below, and a list.
SELECT o_orderkey, o_custkey, o_totalprice
FROM orders
WHERE o_custkey IN (SELECT o_custkey FROM orders GROUP BY o_custkey HAVING count(*) > 25)
    AND o_orderpriority IN ('1-URGENT', '5-LOW')
