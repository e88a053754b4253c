-- cases: text columns, distinct
-- Text through a stage: long, short and empty, with functions over it.
SELECT DISTINCT
    o_comment,
    lower(o_clerk) AS clerk,
    length(o_comment) AS characters,
    substring(o_comment FROM 1 FOR 12) AS head,
    replace(o_orderpriority, '-', ' ') || '!' AS priority,
    CASE WHEN o_comment LIKE '%furiously%' THEN o_clerk ELSE '' END AS furious
FROM orders
WHERE o_orderdate < DATE '1993-06-01'
