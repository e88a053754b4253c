-- Who buys what: every pair of a customer and a part that was ordered, and for each about four parts that this customer never
-- ordered. The draws are arithmetic on the keys and not random(), so each run and each rank has the same negatives.
-- Tables: orders, lineitem, part (TPC-H)
-- Loader: tq.create_dataloader(query, batch_size=4096, shuffle="global")
-- Staged: all rows, since DISTINCT looks at them together.
WITH bought AS (
    SELECT DISTINCT o.o_custkey AS customer, l.l_partkey AS part
    FROM orders AS o
    INNER JOIN lineitem AS l ON o.o_orderkey = l.l_orderkey
),
drawn AS (
    SELECT DISTINCT
        b.customer,
        (b.customer * 104729 + b.part * 7919 + d.draw * 15485863) % p.parts + 1 AS part
    FROM bought AS b
    CROSS JOIN (VALUES (1), (2), (3), (4)) AS d (draw)
    CROSS JOIN (SELECT count(*) AS parts FROM part) AS p
)
SELECT customer, part, CAST(1 AS REAL) AS label FROM bought
UNION ALL
SELECT d.customer, d.part, CAST(0 AS REAL) AS label
FROM drawn AS d
LEFT ANTI JOIN bought AS b ON d.customer = b.customer AND d.part = b.part
