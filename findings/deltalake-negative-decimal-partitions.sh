#!/usr/bin/env bash
# deltalake 1.6.6: a negative decimal as a partition value is written with a second sign, and the table cannot be opened any more.
#
# One would expect a value that cannot be written to be refused before the commit. The value -1.50 is written into the log as the text
# `-1.-50`, and -0.01 as `0.-1`. The commit is there before the call raises an error, which tells of parsing; after it no reader that
# follows the protocol can open the table, at any later version either. Positive decimals are right.
#
# Versions: deltalake 1.6.6, pyarrow 25.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet deltalake==1.6.6 pyarrow==25.0.1
seen=$(venv/bin/python - <<'PYTHON'
import decimal
import json
import pathlib

import deltalake
import pyarrow as pa

for number, text in enumerate(["1.50", "-1.50", "-0.01"]):
    keys = pa.array([decimal.Decimal(text)], pa.decimal128(10, 2))
    folder = pathlib.Path(f"table{number}")
    try:
        deltalake.write_deltalake(folder, pa.table({"k": keys, "x": [1]}), partition_by=["k"])
        written = "no error"
    except Exception as error:
        written = type(error).__name__
    log = (folder / "_delta_log" / "00000000000000000000.json").read_text().splitlines()
    [value] = [line["add"]["partitionValues"]["k"] for line in map(json.loads, log) if "add" in line]
    try:
        opened = f"{deltalake.DeltaTable(folder).to_pyarrow_table().num_rows} row"
    except Exception as error:
        opened = type(error).__name__
    print(f"{text}: write {written}, log {value}, read {opened}")
PYTHON
)
echo "$seen"
expected='1.50: write no error, log 1.50, read 1 row
-1.50: write DeltaError, log -1.-50, read DeltaError
-0.01: write DeltaError, log 0.-1, read DeltaError'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
