-- cases: values, order by
-- Nothing but rows that are written down; with nulls.
SELECT id, word FROM (VALUES (1, 'one'), (2, NULL), (3, 'three'), (NULL, 'none')) AS t (id, word)
ORDER BY id NULLS LAST
