-- cases: union all of local parts
-- Rows of two tables, each filtered and projected: no part needs a stage.
SELECT c_custkey AS id, c_nationkey AS nation, c_acctbal AS balance, 0 AS label
FROM customer
WHERE c_mktsegment = 'BUILDING'
UNION ALL
SELECT s_suppkey, s_nationkey, s_acctbal, 1
FROM supplier
WHERE s_acctbal > 0
