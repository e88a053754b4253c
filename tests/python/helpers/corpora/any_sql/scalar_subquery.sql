-- cases: scalar subquery
-- One value of everything, and values that depend on the row, null where there is nothing. (Not two of them with one
-- a count: DataFusion 53 then fails on "ambiguous reference to unqualified field __always_true".)
SELECT
    c_custkey,
    CAST(c_acctbal AS DOUBLE) - (SELECT avg(CAST(c_acctbal AS DOUBLE)) FROM customer) AS centred,
    (SELECT max(o_totalprice) FROM orders WHERE o_custkey = c_custkey) AS dearest,
    (SELECT min(o_orderdate) FROM orders WHERE o_custkey = c_custkey AND o_orderstatus = 'F') AS since
FROM customer
