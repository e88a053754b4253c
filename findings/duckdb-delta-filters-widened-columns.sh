#!/usr/bin/env bash
# DuckDB's delta extension 1.5.5: a comparison on a column that was widened (Delta's feature `typeWidening`) loses rows and adds others.
#
# Files from before the widening keep the old type. Two things go wrong with them. The literal is cast to the type of the file, so that
# `i = 16.5` on an INT that became a DOUBLE is true for 16, and `j > 28.99` on an INT that became a DECIMAL is false for 29. And bounds in the
# log are read in the new type: writers put a 32-bit float there as its shortest text, 2.9 for a value that is 2.9000000953… as a DOUBLE, so
# that `f > 2.9` leaves the file out. An expression that is not pushed down (`f + 0 > 2.9`) gives the right rows, and so does Spark 4.0
# with delta-spark 4.0 over a table of the same shape.
#
# Versions: duckdb 1.5.5, duckdb-extension-delta 1.5.5, pyarrow 26.0.1. Seen on 2026-11-28: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import json
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

package = Path(find_spec("duckdb_extension_delta").origin).parent
con = duckdb.connect(config={"allow_unsigned_extensions": True})
con.execute(f"LOAD '{next(package.rglob('delta.duckdb_extension'))}'")
root = Path("t")
(root / "_delta_log").mkdir(parents=True)
widened = {"f": ("float", "double"), "i": ("integer", "double"), "j": ("integer", "decimal(12,2)")}
fields = [
    {"name": name, "type": new, "nullable": True, "metadata": {"delta.typeChanges": [{"fromType": old, "toType": new}]}}
    for name, (old, new) in widened.items()
]
before, after = root / "before.parquet", root / "after.parquet"
old = {"f": pa.array([0.5, 2.9], pa.float32()), "i": pa.array([16, 20], pa.int32()), "j": pa.array([28, 29], pa.int32())}
new = {"f": [3.0, 3.1], "i": [1.5, 2.5], "j": pa.array([1, 2], pa.decimal128(12, 2))}
pq.write_table(pa.table(old), before)
pq.write_table(pa.table(new), after)

def add(path, table):
    bounds = {name: [float(str(value.as_py())) for value in pa.array(values)] for name, values in table.items()}
    bounds["f"] = [0.5, 2.9] if path is before else bounds["f"]
    stats = {"numRecords": 2, "minValues": {name: min(values) for name, values in bounds.items()},
             "maxValues": {name: max(values) for name, values in bounds.items()}, "nullCount": dict.fromkeys(bounds, 0)}
    return {"add": {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0,
                    "dataChange": True, "stats": json.dumps(stats)}}

actions = [
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"],
                  "writerFeatures": ["typeWidening"]}},
    {"metaData": {"id": "5f1c2ab0-0000-4000-8000-000000000001", "format": {"provider": "parquet", "options": {}},
                  "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": [],
                  "configuration": {"delta.enableTypeWidening": "true"}, "createdTime": 0}},
    add(before, old),
    add(after, new),
]
(root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
for column, condition in (("f", "> 2.9"), ("i", "= 16.5"), ("j", "> 28.99")):
    for operand in (column, f"{column} + 0"):
        rows = con.execute(f"SELECT {column} FROM delta_scan('t') WHERE {operand} {condition} ORDER BY 1").fetchall()
        print(f"{operand} {condition}: {[float(row[0]) for row in rows]}")
PYTHON
)
echo "$seen"
expected="f > 2.9: [3.0, 3.1]
f + 0 > 2.9: [2.9000000953674316, 3.0, 3.1]
i = 16.5: [16.0]
i + 0 = 16.5: []
j > 28.99: []
j + 0 > 28.99: [29.0]"
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-28" >&2; exit 1; }
