#!/usr/bin/env bash
# polars 2.1: an empty text as a partition value of a Delta table is read as an empty text, which the protocol says is NULL.
#
# Delta writes NULL and the empty text as partition values alike, so a reader cannot tell them apart, and the protocol (Partition Value
# Serialization) says that an empty text is NULL. deltalake reads NULL. polars scans the table through its own reader and gives the empty
# text, so that `k IS NULL` finds other rows. The writer lets the value pass without a word.
#
# Versions: polars 2.1.0, deltalake 1.6.6, pyarrow 25.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet polars==2.1.0 deltalake==1.6.6 pyarrow==25.0.1
seen=$(venv/bin/python - <<'PYTHON'
import json

import deltalake
import polars as pl
import pyarrow as pa

rows = pa.table({"k": ["", "a", None], "i": [1, 2, 3]})
deltalake.write_deltalake("table", rows, partition_by=["k"])
by_deltalake = deltalake.DeltaTable("table").to_pyarrow_table().sort_by("i")["k"].to_pylist()
by_polars = pl.scan_delta("table").sort("i").collect()["k"].to_list()
print("deltalake", json.dumps(by_deltalake))
print("polars", json.dumps(by_polars))
print("k IS NULL: polars", pl.scan_delta("table").filter(pl.col("k").is_null()).collect()["i"].to_list())
PYTHON
)
echo "$seen"
expected='deltalake [null, "a", null]
polars ["", "a", null]
k IS NULL: polars [3]'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
