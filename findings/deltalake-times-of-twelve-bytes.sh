#!/usr/bin/env bash
# deltalake reads timestamps of twelve bytes (INT96) outside the years 1677 to 2262 as other times, without an error.
#
# Spark writes the timestamps of Delta tables as INT96 unless it is told otherwise, and no Arrow schema into its files. Delta's
# type `timestamp` has microseconds and all years; deltalake's reader goes by way of 64-bit nanoseconds, which wrap. Here the log
# is made by its own conversion of a Parquet file; files of Spark give the same.
#
# Versions: deltalake 1.6.6, pyarrow 26.0.1. Seen on 2026-11-28: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet deltalake==1.6.6 pyarrow==26.0.1
cat >"$folder/read.py" <<'PYTHON'
import os
import sys
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

place = sys.argv[1] + "/t"
os.makedirs(place)
times = pa.array([datetime(1583, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
pq.write_table(pa.table({"t": times}), f"{place}/a.parquet", **options)
print("stored as", pq.ParquetFile(f"{place}/a.parquet").schema.column(0).physical_type)
exact = pq.read_table(f"{place}/a.parquet", coerce_int96_timestamp_unit="us")["t"]
print("pyarrow", *sorted(time.year for time in exact.to_pylist()))
deltalake.convert_to_deltalake(place)
builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(place))
found = pa.table(builder.execute("SELECT t FROM t"))["t"]
print("deltalake", *sorted(time.year for time in found.to_pylist()))
PYTHON
seen=$("$folder/venv/bin/python" "$folder/read.py" "$folder")
echo "$seen"
expected="stored as INT96
pyarrow 1583 2000
deltalake 2000 2167"
[ "$seen" = "$expected" ] || { echo "this has changed" >&2; exit 1; }
