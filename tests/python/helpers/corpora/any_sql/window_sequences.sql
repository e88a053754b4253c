-- cases: sequences, lag
-- A sliding window as a sequence: each order with the three before it, padded in front with nulls. (Not as array_agg with a
-- frame: DataFusion 53 says that it cannot take rows out of one again.)
SELECT
    o_orderkey,
    [lag(o_totalprice, 3) OVER by_day, lag(o_totalprice, 2) OVER by_day, lag(o_totalprice, 1) OVER by_day, o_totalprice]
        AS history
FROM orders
WINDOW by_day AS (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey)
