-- Features by CASE: buckets, one-hot columns and a label of three classes, none of them null.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=4096, shuffle=True, stack={"x": ["is_newark", "is_kennedy", "is_la_guardia", "log_distance"]})
-- Staged: nothing.
SELECT
    CASE WHEN hour < 10 THEN 0 WHEN hour < 16 THEN 1 ELSE 2 END AS part_of_day,
    CASE WHEN origin = 'EWR' THEN 1.0 ELSE 0.0 END AS is_newark,
    CASE WHEN origin = 'JFK' THEN 1.0 ELSE 0.0 END AS is_kennedy,
    CASE WHEN origin = 'LGA' THEN 1.0 ELSE 0.0 END AS is_la_guardia,
    ln(distance) AS log_distance,
    CASE
        WHEN arr_delay IS NULL THEN 2
        WHEN arr_delay > 15 THEN 1
        ELSE 0
    END AS outcome
FROM flights
