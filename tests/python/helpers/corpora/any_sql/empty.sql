-- cases: empty result, group by
-- No group is that large.
SELECT l_suppkey, count(*) AS lines FROM lineitem GROUP BY l_suppkey HAVING count(*) > 1000000
