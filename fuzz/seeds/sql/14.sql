SELECT sum(price), avg(ratio), stddev(small), approx_percentile_cont(ratio, 0.5) FROM t GROUP BY ROLLUP (flag, day)
