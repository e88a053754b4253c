SELECT a.id FROM t AS a LEFT JOIN t AS b ON a.id = b.id AND a.small < b.small
