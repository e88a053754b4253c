-- cases: rank
-- Ranks with ties, without gaps and as a part of one.
SELECT
    p_partkey,
    rank() OVER (PARTITION BY p_brand ORDER BY p_size) AS size_rank,
    dense_rank() OVER (PARTITION BY p_brand ORDER BY p_size DESC) AS size_class,
    percent_rank() OVER (ORDER BY p_retailprice) AS price_rank,
    cume_dist() OVER (PARTITION BY p_mfgr ORDER BY p_retailprice) AS cheaper
FROM part
