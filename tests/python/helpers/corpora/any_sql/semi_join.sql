-- cases: semi join
-- Orders with a line that came late, each once however many did. (Not as an operator of its own: DataFusion parses
-- LEFT SEMI JOIN, and DuckDB SEMI JOIN.)
SELECT o_orderkey, o_orderdate, o_totalprice
FROM orders
WHERE EXISTS (
    SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_receiptdate > l_commitdate + INTERVAL '60' DAY
)
