-- cases: sessions, running sum, lag
-- A customer's orders in sessions: one ends where the next order is more than half a year away.
WITH gaps AS (
    SELECT
        o_custkey,
        o_orderkey,
        o_orderdate,
        lag(o_orderdate) OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS before
    FROM orders
),
numbered AS (
    SELECT
        o_custkey,
        o_orderkey,
        sum(CASE WHEN before IS NULL OR o_orderdate > before + INTERVAL '180' DAY THEN 1 ELSE 0 END)
            OVER (PARTITION BY o_custkey ORDER BY o_orderdate, o_orderkey) AS session
    FROM gaps
)
SELECT
    o_custkey,
    o_orderkey,
    session,
    row_number() OVER (PARTITION BY o_custkey, session ORDER BY o_orderkey) AS place
FROM numbered
