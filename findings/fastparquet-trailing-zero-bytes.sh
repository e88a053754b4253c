#!/usr/bin/env bash
# fastparquet 2026.9: values of FIXED_LEN_BYTE_ARRAY lose their zero bytes at the end.
#
# A hash or a UUID of 16 bytes that ends with a zero byte, one in 256, comes back with 15 bytes, and a value of zeros as an empty one. One
# would expect a fixed length to be kept: the values pass through a text type of NumPy that cuts zeros. pyarrow and DuckDB read all bytes.
#
# Versions: fastparquet 2026.9.0, pyarrow 25.0.1, duckdb 2.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet fastparquet==2026.9.0 pyarrow==25.0.1 duckdb==2.0.1
seen=$(venv/bin/python - <<'PYTHON'
import duckdb
import fastparquet
import pyarrow as pa
import pyarrow.parquet as pq

values = [b"\x01\x02\x03\x04", b"\x01\x02\x03\x00", b"\x00\x00\x00\x00"]
pq.write_table(pa.table({"id": pa.array(values, pa.binary(4))}), "ids.parquet")
print("fastparquet", *(value.hex() or "(empty)" for value in fastparquet.ParquetFile("ids.parquet").to_pandas()["id"]))
print("duckdb     ", *(value.hex() or "(empty)" for (value,) in duckdb.sql("FROM \"ids.parquet\"").fetchall()))
PYTHON
)
echo "$seen"
expected='fastparquet 01020304 010203 (empty)
duckdb      01020304 01020300 00000000'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
