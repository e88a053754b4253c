#!/usr/bin/env bash
# deltalake 1.6.6: a query loses the rows with NaN of a file, depending on the number that they are compared with.
#
# The engine behind QueryBuilder has NaN above all numbers, so that NaN > 5 is true. The statistics that deltalake writes into the log leave
# NaN out: the maximum of 1, NaN, 3 is 3. One would expect a reader that knows both to keep a file whose column may hold NaN. It skips the
# file for `f > 5`, and reads it for `f > 2`: there the row with NaN is found. The rows of polars over the table are those of a table in
# memory.
#
# Versions: deltalake 1.6.6, pyarrow 25.0.1, polars 2.1.0. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet deltalake==1.6.6 pyarrow==25.0.1 polars==2.1.0
seen=$(venv/bin/python - <<'PYTHON'
import deltalake
import polars as pl
import pyarrow as pa

deltalake.write_deltalake("table", pa.table({"i": [1, 2, 3], "f": [1.0, float("nan"), 3.0]}))
table = deltalake.DeltaTable("table")
for condition in ("f > 2", "f > 5", "NOT f < 5"):
    answer = deltalake.QueryBuilder().register("t", table).execute(f"SELECT i FROM t WHERE {condition} ORDER BY i")
    found = pa.table(answer.read_all())["i"].to_pylist()
    judged = pl.scan_delta("table").filter(pl.sql_expr(condition)).collect()["i"].to_list()
    print(f"{condition}: deltalake", found, "polars", judged)
PYTHON
)
echo "$seen"
expected='f > 2: deltalake [2, 3] polars [2, 3]
f > 5: deltalake [] polars [2]
NOT f < 5: deltalake [] polars [2]'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
