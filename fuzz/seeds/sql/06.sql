SELECT DISTINCT record['name'], list[1], unnest(list) FROM t
