-- cases: group by
-- Robust scaling by exact quantiles, which hold all values of a group.
SELECT l_shipmode, l_linenumber, median(CAST(l_extendedprice AS DOUBLE)) AS middle, count(*) AS lines
FROM lineitem
GROUP BY l_shipmode, l_linenumber
