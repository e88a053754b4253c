-- cases: full join, group by
-- What was ordered and what was shipped by day, where one may be without the other.
SELECT coalesce(o.day, l.day) AS day, o.orders, l.shipped
FROM (SELECT o_orderdate AS day, count(*) AS orders FROM orders GROUP BY o_orderdate) AS o
FULL OUTER JOIN (
    SELECT l_shipdate AS day, sum(l_quantity) AS shipped FROM lineitem GROUP BY l_shipdate
) AS l ON o.day = l.day
