-- One small table joined twice: the great-circle distance in kilometres between both airports.
-- A LEFT JOIN keeps flights to the airports that the table lacks, with a distance of 0.
-- Tables: flights, airports
-- Loader: tq.create_dataloader(query, batch_size=4096, shuffle=True)
-- Staged: nothing; airports are the small side of both joins.
SELECT
    f.distance * 1.609344 AS flown_km,
    COALESCE(
        12742 * asin(sqrt(
            power(sin(radians(d.lat - o.lat) / 2), 2)
            + cos(radians(o.lat)) * cos(radians(d.lat)) * power(sin(radians(d.lon - o.lon) / 2), 2)
        )),
        0.0
    ) AS great_circle_km
FROM flights AS f
INNER JOIN airports AS o ON f.origin = o.faa
LEFT JOIN airports AS d ON f.dest = d.faa
