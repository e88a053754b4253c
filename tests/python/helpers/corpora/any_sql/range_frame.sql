-- cases: frames
-- A frame by time: what was ordered in the thirty days before each day and on it.
SELECT
    o_orderdate,
    orders,
    sum(orders) OVER (
        ORDER BY o_orderdate
        RANGE BETWEEN INTERVAL '30' DAY PRECEDING AND CURRENT ROW
    ) AS orders_of_a_month
FROM (
    SELECT CAST(o_orderdate AS TIMESTAMP) AS o_orderdate, count(*) AS orders
    FROM orders
    GROUP BY o_orderdate
) AS days
