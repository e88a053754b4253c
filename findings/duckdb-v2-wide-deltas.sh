#!/usr/bin/env bash
# DuckDB's Parquet writer, version 2, stores differences of 32-bit integers as 64-bit numbers; pyarrow and arrow-rs do not read such
# files.
#
# The Parquet format says that DELTA_BINARY_PACKED of INT32 computes in 32 bits with wrap-around ("2's complement"). So no packed
# difference of an INT32 column takes more than 32 bits. DuckDB 2.0.1 with PARQUET_VERSION V2 computes in 64 bits: a column that
# jumps over more than half of the range has differences of 33 bits. DuckDB and polars read it back; pyarrow and the `parquet` crate
# (by arro3-io) raise errors.
# Format: https://github.com/apache/parquet-format/blob/master/Encodings.md#delta-encoding-delta_binary_packed--5
#
# Versions: duckdb 2.0.1, pyarrow 26.0.1, polars 2.1.0, arro3-io 0.9.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet duckdb==2.0.1 pyarrow==26.0.1 polars==2.1.0 arro3-io==0.9.1 arro3-core
cat >"$folder/read.py" <<'PYTHON'
import sys

import arro3.io
import duckdb
import polars
import pyarrow
import pyarrow.parquet as pq

path = sys.argv[1] + "/t.parquet"
values = "(hash(i) % 4294967296)::BIGINT - 2147483648"
duckdb.sql(f"COPY (SELECT ({values})::INTEGER AS x FROM range(5000) t(i)) TO '{path}' (PARQUET_VERSION V2)")
want = [row[0] for row in duckdb.sql(f"SELECT {values} FROM range(5000) t(i)").fetchall()]
print("encodings", *pq.ParquetFile(path).metadata.row_group(0).column(0).encodings)
readers = {
    "duckdb": lambda: [row[0] for row in duckdb.sql(f"SELECT x FROM '{path}'").fetchall()],
    "pyarrow": lambda: pq.read_table(path)["x"].to_pylist(),
    "polars": lambda: polars.read_parquet(path)["x"].to_list(),
    "arro3": lambda: pyarrow.table(arro3.io.read_parquet(path).read_all())["x"].to_pylist(),
}
for name, read in readers.items():
    try:
        print(name, "reads it" if read() == want else "reads other values")
    except Exception as error:
        print(name, "raises", type(error).__name__)
PYTHON
seen=$("$folder/venv/bin/python" "$folder/read.py" "$folder")
echo "$seen"
expected="encodings DELTA_BINARY_PACKED
duckdb reads it
pyarrow raises OSError
polars reads it
arro3 raises Exception"
[ "$seen" = "$expected" ] || { echo "this has changed" >&2; exit 1; }
