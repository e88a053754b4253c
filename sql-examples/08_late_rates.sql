-- Click-through style features: how often did a route of a carrier run late in the 30 days before? Click models live on
-- such rates of an event by key. The day of the flight itself is left out, so no label leaks into its own feature. A prior
-- of 20 flights at the usual rate keeps keys with little history near that rate.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=2048, shuffle=True, stack={"x": ["late_rate", "log_flown"]})
-- Staged: nothing; the daily counts are the small side of a join, and the flights are read split by split.
WITH days AS (
    SELECT
        carrier, origin, dest,
        make_date(year, month, day) AS day,
        count(*) AS flown,
        sum(CASE WHEN arr_delay > 15 THEN 1 ELSE 0 END) AS late
    FROM flights
    WHERE arr_delay IS NOT NULL
    GROUP BY carrier, origin, dest, make_date(year, month, day)
),
history AS (
    SELECT
        carrier, origin, dest, day,
        -- Up to this day and without it: a RANGE frame that ends before its row may be empty, and DataFusion 53 then
        -- keeps what has left the frame.
        sum(flown) OVER past - flown AS flown,
        sum(late) OVER past - late AS late
    FROM days
    WINDOW past AS (
        PARTITION BY carrier, origin, dest ORDER BY day
        RANGE BETWEEN INTERVAL '30 days' PRECEDING AND CURRENT ROW
    )
)
SELECT
    f.flight,
    CAST((h.late + 20 * 0.24) / (h.flown + 20) AS REAL) AS late_rate,
    CAST(ln(1 + h.flown) AS REAL) AS log_flown,
    CAST(f.arr_delay > 15 AS REAL) AS label
FROM flights AS f
INNER JOIN history AS h
    ON f.carrier = h.carrier AND f.origin = h.origin AND f.dest = h.dest
    AND make_date(f.year, f.month, f.day) = h.day
WHERE f.arr_delay IS NOT NULL
