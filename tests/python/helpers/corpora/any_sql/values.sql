-- cases: values
-- Rows that are written down, joined to a table.
SELECT weights.segment, weights.weight, c_custkey
FROM (VALUES ('BUILDING', 2.5), ('MACHINERY', 0.5), ('NOTHING', 9.0)) AS weights (segment, weight)
JOIN customer ON c_mktsegment = weights.segment
WHERE c_custkey % 7 = 0
