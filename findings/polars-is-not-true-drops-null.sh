#!/usr/bin/env bash
# polars 2.1: SQL's `b IS NOT TRUE` leaves out the rows where b is NULL.
#
# IS [NOT] TRUE is defined never to be NULL: `NULL IS NOT TRUE` is true, and that is why people write it in place of NOT b. In SQLContext
# and sql_expr it answers as NOT b does, and IS NOT FALSE as b does. DuckDB and SQLite follow the standard.
#
# Versions: polars 2.1.0, duckdb 2.0.1, pyarrow 25.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet polars==2.1.0 duckdb==2.0.1 pyarrow==25.0.1
seen=$(venv/bin/python - <<'PYTHON'
import sqlite3

import duckdb
import polars as pl
import pyarrow as pa

rows = pa.table({"i": [1, 2, 3], "b": [True, False, None]})
lite = sqlite3.connect(":memory:")
lite.execute("CREATE TABLE t (i, b)")
lite.executemany("INSERT INTO t VALUES (?, ?)", zip(*rows.to_pydict().values()))
for condition in ("b IS NOT TRUE", "b IS NOT FALSE"):
    found = pl.SQLContext(t=pl.from_arrow(rows)).execute(f"SELECT i FROM t WHERE {condition}").collect()
    judges = [[i for (i,) in judge.execute(f"SELECT i FROM {table} WHERE {condition}").fetchall()] for judge, table in ((duckdb, "rows"), (lite, "t"))]
    print(f"{condition}: polars", found["i"].to_list(), "duckdb", judges[0], "sqlite", judges[1])
PYTHON
)
echo "$seen"
expected='b IS NOT TRUE: polars [2] duckdb [2, 3] sqlite [2, 3]
b IS NOT FALSE: polars [1] duckdb [1, 3] sqlite [1, 3]'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
