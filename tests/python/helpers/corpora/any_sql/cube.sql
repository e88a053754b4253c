-- cases: cube
-- Subtotals by every subset of three keys.
SELECT l_returnflag, l_linestatus, l_shipmode, count(*) AS lines, avg(CAST(l_quantity AS DOUBLE)) AS quantity
FROM lineitem
GROUP BY CUBE (l_returnflag, l_linestatus, l_shipmode)
