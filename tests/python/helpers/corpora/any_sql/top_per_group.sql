-- cases: row_number per class, filter above window
-- The three dearest orders of each month.
SELECT month, o_orderkey, o_totalprice
FROM (
    SELECT
        date_trunc('month', o_orderdate) AS month,
        o_orderkey,
        o_totalprice,
        row_number() OVER (
            PARTITION BY date_trunc('month', o_orderdate) ORDER BY o_totalprice DESC, o_orderkey
        ) AS place
    FROM orders
) AS ranked
WHERE place <= 3
