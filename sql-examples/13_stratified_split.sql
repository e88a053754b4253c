-- Stratified train, validation and test sets, 80 : 10 : 10 within each carrier and class. Rows are ranked by a hash within
-- their stratum, so rare strata are divided as exactly as common ones. The hash decides, not the order of files.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=2048, shuffle=True, filters="subset = 0", columns=["hour", "distance", "label"])
-- Staged: all rows, since the rank of one depends on the others of its stratum.
WITH labelled AS (
    SELECT
        carrier, hour, distance,
        CAST(arr_delay > 15 AS INTEGER) AS label,
        concat_ws('/', carrier, flight, origin, year, month, day, sched_dep_time) AS id
    FROM flights
    WHERE arr_delay IS NOT NULL
),
ranked AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY carrier, label ORDER BY md5(id), id) AS place,
        count(*) OVER (PARTITION BY carrier, label) AS size
    FROM labelled
)
SELECT
    id, carrier, hour, distance, label,
    CASE WHEN place * 10 <= size * 8 THEN 0 WHEN place * 10 <= size * 9 THEN 1 ELSE 2 END AS subset
FROM ranked
