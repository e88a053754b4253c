-- cases: select without from
-- One row of nothing.
SELECT 1 AS one, 'two' AS two, CAST(3.5 AS DOUBLE) AS three, DATE '2026-01-01' AS day, CAST(NULL AS INTEGER) AS nothing
