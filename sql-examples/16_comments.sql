-- Text beside numbers: comments go to the tokenizer as lists of str, and the priority becomes a code with a fixed meaning.
-- Tables: orders (TPC-H)
-- Loader: tq.create_dataloader(query, batch_size=256, shuffle=True, categories={"priority": ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]})
-- Staged: nothing.
SELECT
    lower(trim(o_comment)) AS text,
    CAST(character_length(trim(o_comment)) AS INTEGER) AS characters,
    CAST(o_comment LIKE '%special%requests%' AS REAL) AS complains,
    o_orderpriority AS priority
FROM orders
WHERE character_length(trim(o_comment)) >= 20
