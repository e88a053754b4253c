-- Train, validation and test by a hash of the customer, 80 : 10 : 10. All orders of a customer are in one subset, so a model
-- is not tested on customers that it has seen. A row keeps its subset when rows are added. `filters` chooses the subset.
-- Tables: orders, customer (TPC-H)
-- Loader: tq.create_dataloader(query, batch_size=1024, shuffle=True, filters="subset = 'train'", columns=["customer", "balance", "segment", "price"], categories={"segment": ["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"]})
-- Staged: nothing; a hash needs no other row.
SELECT
    o.o_orderkey AS id,
    o.o_custkey AS customer,
    CASE
        -- The first byte of the hash, in hexadecimal: 205, 26 and 25 of 256 values.
        WHEN substr(md5(CAST(o.o_custkey AS VARCHAR)), 1, 2) < 'cd' THEN 'train'
        WHEN substr(md5(CAST(o.o_custkey AS VARCHAR)), 1, 2) < 'e7' THEN 'validation'
        ELSE 'test'
    END AS subset,
    CAST(c.c_acctbal AS REAL) AS balance,
    c.c_mktsegment AS segment,
    CAST(o.o_totalprice AS REAL) AS price
FROM orders AS o
INNER JOIN customer AS c ON o.o_custkey = c.c_custkey
