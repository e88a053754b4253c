-- One row per customer: all orders but the last as two sequences of one length, and the value of the last one as the target.
-- If a model wants rectangles, pad to the longest sequence of a batch, as here.
-- Tables: orders (TPC-H)
-- Loader: tq.create_dataloader(query, batch_size=64, shuffle=True, pad={"amounts": 0.0, "gaps": -1})
-- Staged: all rows, one for each group.
WITH numbered AS (
    SELECT
        o_custkey, o_orderkey, o_orderdate,
        CAST(o_totalprice AS REAL) AS amount,
        COALESCE(
            CAST(o_orderdate AS INTEGER) - lag(CAST(o_orderdate AS INTEGER)) OVER (
                PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey
            ),
            0
        ) AS gap,
        row_number() OVER (PARTITION BY o_custkey ORDER BY o_orderdate DESC, o_orderkey DESC) AS from_end
    FROM orders
)
SELECT
    o_custkey AS customer,
    array_agg(amount ORDER BY o_orderdate, o_orderkey) FILTER (WHERE from_end > 1) AS amounts,
    array_agg(gap ORDER BY o_orderdate, o_orderkey) FILTER (WHERE from_end > 1) AS gaps,
    max(CASE WHEN from_end = 1 THEN amount END) AS target
FROM numbered
GROUP BY o_custkey
HAVING count(*) > 1
