-- cases: text columns, group by, order by
-- A vocabulary of words with their counts, taken from text by unnesting it.
SELECT word, count(*) AS uses
FROM (SELECT unnest(string_to_array(p_name, ' ')) AS word FROM part) AS words
GROUP BY word
ORDER BY uses DESC, word
