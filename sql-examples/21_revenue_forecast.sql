-- Forecasting: the revenue shipped on a day, from the revenue one, two, three, seven and 28 days before, and from the mean of
-- the last 28 days. Lags are columns, packed into one tensor.
-- Tables: lineitem (TPC-H)
-- Loader: tq.create_dataloader(query, batch_size=128, stack={"x": ["lag_1", "lag_2", "lag_3", "lag_7", "lag_28", "mean_28"]})
-- Staged: all rows, one for each day.
WITH calendar AS (
    -- Days on which nothing was shipped count as well.
    SELECT unnest(generate_series(min(l_shipdate), max(l_shipdate), INTERVAL '1 day')) AS day FROM lineitem
),
shipped AS (
    SELECT l_shipdate AS day, CAST(sum(l_extendedprice * (1 - l_discount)) AS DOUBLE) / 1e6 AS revenue
    FROM lineitem
    GROUP BY l_shipdate
),
days AS (
    SELECT c.day, COALESCE(s.revenue, 0) AS revenue
    FROM calendar AS c
    LEFT JOIN shipped AS s ON c.day = s.day
),
lags AS (
    SELECT
        day, revenue,
        lag(revenue, 1) OVER by_day AS lag_1,
        lag(revenue, 2) OVER by_day AS lag_2,
        lag(revenue, 3) OVER by_day AS lag_3,
        lag(revenue, 7) OVER by_day AS lag_7,
        lag(revenue, 28) OVER by_day AS lag_28,
        avg(revenue) OVER (ORDER BY day ROWS BETWEEN 28 PRECEDING AND 1 PRECEDING) AS mean_28
    FROM days
    WINDOW by_day AS (ORDER BY day)
)
SELECT
    day,
    CAST(lag_1 AS REAL) AS lag_1,
    CAST(lag_2 AS REAL) AS lag_2,
    CAST(lag_3 AS REAL) AS lag_3,
    CAST(lag_7 AS REAL) AS lag_7,
    CAST(lag_28 AS REAL) AS lag_28,
    CAST(mean_28 AS REAL) AS mean_28,
    CAST(revenue AS REAL) AS target
FROM lags
WHERE lag_28 IS NOT NULL
ORDER BY day
