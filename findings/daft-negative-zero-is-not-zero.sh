#!/usr/bin/env bash
# daft 0.7: `x = 0` does not find -0.0, in a filter and in a join.
#
# SQL and IEEE 754 have -0.0 equal to 0.0. daft compares floats in a total order, which also makes NaN equal to NaN, so rows with -0.0 (as a
# rounded small negative number leaves them) vanish from a filter and find no partner in a join. DuckDB and polars keep them.
#
# Versions: daft 0.7.26, duckdb 2.0.1, polars 2.1.0, pyarrow 25.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet daft==0.7.26 duckdb==2.0.1 polars==2.1.0 pyarrow==25.0.1
seen=$(venv/bin/python - <<'PYTHON'
import daft
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

pq.write_table(pa.table({"i": [1, 2, 3], "x": [0.0, -0.0, 1.0]}), "x.parquet")
table, one = daft.read_parquet("x.parquet"), daft.from_pydict({"x": [0.0], "y": [1]})
print("daft   x = 0:", sorted(table.where(daft.sql_expr("x = 0")).to_pydict()["i"]))
print("daft   join: ", sorted(table.join(one, on="x").to_pydict()["i"]))
print("duckdb x = 0:", [i for (i,) in duckdb.sql("SELECT i FROM \"x.parquet\" WHERE x = 0 ORDER BY i").fetchall()])
print("polars x = 0:", pl.scan_parquet("x.parquet").filter(pl.sql_expr("x = 0")).collect()["i"].to_list())
PYTHON
)
echo "$seen"
expected='daft   x = 0: [1]
daft   join:  [1]
duckdb x = 0: [1, 2]
polars x = 0: [1, 2]'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
