#!/usr/bin/env bash
# pyarrow 26.0.1: filters lose rows with NaN, by statistics that leave NaN out.
#
# Parquet statistics leave NaN out. Where minimum and maximum are equal, the dataset takes the whole column of that row group for that one
# value, and prunes it for every condition that the value does not meet: is_nan, a negated comparison, even `f != 3`, also through
# read_table(filters=…) and so in all that reads with pyarrow datasets (pyiceberg, deltalake). One would expect what the same filter finds
# in memory. Beside two different numbers, the negated comparison alone loses NaN.
#
# Versions: pyarrow 26.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

field = pc.field("f")
conditions = {"is_nan(f)": pc.is_nan(field), "not (f < 5)": ~(field < 5), "f != 3": field != 3}
for values in ([3.0, float("nan")], [3.0, 4.0, float("nan")]):
    rows = pa.table({"f": values})
    pq.write_table(rows, "f.parquet")
    for name, condition in conditions.items():
        scanned = ds.dataset("f.parquet").to_table(filter=condition).num_rows
        read = pq.read_table("f.parquet", filters=condition).num_rows
        print(f"{values}, {name}: dataset {scanned}, read_table {read}, in memory {rows.filter(condition).num_rows}")
PYTHON
)
echo "$seen"
expected='[3.0, nan], is_nan(f): dataset 0, read_table 0, in memory 1
[3.0, nan], not (f < 5): dataset 0, read_table 0, in memory 1
[3.0, nan], f != 3: dataset 0, read_table 0, in memory 1
[3.0, 4.0, nan], is_nan(f): dataset 1, read_table 1, in memory 1
[3.0, 4.0, nan], not (f < 5): dataset 0, read_table 0, in memory 1
[3.0, 4.0, nan], f != 3: dataset 2, read_table 2, in memory 2'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
