SELECT date_trunc('month', day), extract(epoch FROM at), regexp_replace(text, '(a+)', 'b\1', 'g'), substr(text, 2, 3) FROM t
