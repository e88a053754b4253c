-- Embeddings from fixed-size lists: each destination is a vector of 12 numbers (the share of its flights by month), looked up
-- for each flight by a join. A list of fixed size is a tensor of shape (N, 12); a Parquet column of that type needs no cast.
-- Tables: flights
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle=True)
-- Staged: nothing; the vectors are the small side of a join.
WITH vectors AS (
    SELECT
        dest,
        arrow_cast(
            make_array(
                avg(CAST(month = 1 AS DOUBLE)), avg(CAST(month = 2 AS DOUBLE)), avg(CAST(month = 3 AS DOUBLE)),
                avg(CAST(month = 4 AS DOUBLE)), avg(CAST(month = 5 AS DOUBLE)), avg(CAST(month = 6 AS DOUBLE)),
                avg(CAST(month = 7 AS DOUBLE)), avg(CAST(month = 8 AS DOUBLE)), avg(CAST(month = 9 AS DOUBLE)),
                avg(CAST(month = 10 AS DOUBLE)), avg(CAST(month = 11 AS DOUBLE)), avg(CAST(month = 12 AS DOUBLE))
            ),
            'FixedSizeList(12 x Float32)'
        ) AS vector
    FROM flights
    GROUP BY dest
)
SELECT v.vector, f.hour, CAST(f.air_time AS REAL) AS minutes
FROM flights AS f
INNER JOIN vectors AS v ON f.dest = v.dest
WHERE f.air_time IS NOT NULL
