#!/usr/bin/env bash
# pyiceberg 0.12: `s NOT IN (…)` finds the rows where s is NULL, `s != …` does not, and a delete by NOT IN leaves them.
#
# One would expect NOT IN of one value to be !=, and a delete to remove the rows that a scan by the same filter finds. In a scan NOT IN is
# evaluated as the negation of a test that is false for NULL, so NULL passes. != and an AND of two of them follow SQL, where NULL passes
# neither. The delete keeps every row for which the filter is not plainly true, by other rules, and so keeps NULL.
#
# Versions: pyiceberg 0.12.0, pyarrow 26.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet "pyiceberg[pyarrow,sql-sqlite]==0.12.0" pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import pathlib
import warnings

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import NotEqualTo, NotIn

warnings.simplefilter("ignore")
folder = pathlib.Path.cwd()
catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
catalog.create_namespace("n")
rows = pa.table({"i": [1, 2, 3], "s": ["a", "b", None]})
table = catalog.create_table("n.t", rows.schema)
table.append(rows)
filters = {"NotIn(s, {a, x})": NotIn("s", ["a", "x"]), "s NOT IN (a, x)": "s NOT IN ('a', 'x')", "NotEqualTo(s, a)": NotEqualTo("s", "a")}
for name, condition in filters.items():
    print(f"scan {name}:", table.scan(row_filter=condition).to_arrow()["i"].to_pylist())
table.delete(NotIn("s", ["a", "x"]))
print("left after delete(NotIn(s, {a, x})):", table.scan().to_arrow()["i"].to_pylist())
PYTHON
)
echo "$seen"
expected='scan NotIn(s, {a, x}): [2, 3]
scan s NOT IN (a, x): [2, 3]
scan NotEqualTo(s, a): [2]
left after delete(NotIn(s, {a, x})): [1, 3]'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
