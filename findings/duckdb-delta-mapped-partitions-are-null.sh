#!/usr/bin/env bash
# DuckDB's delta extension 1.5.5: every value of a partition column is NULL where the table maps its columns, and no error is raised.
#
# A table under `delta.columnMapping.mode` names its partition values in the log by physical names (`col-…`), as the protocol says. Whoever
# renames or drops a column of a Delta table has switched mapping on, since no writer renames without it. `delta_scan` looks the values up by
# logical names: the column is there, in its type, and all NULL, in both modes (`name` and `id`). A filter on the column then loses rows, and
# grouping by it makes one group. Columns in data files are read rightly.
#
# Versions: duckdb 1.5.5, duckdb-extension-delta 1.5.5, pyarrow 26.0.1; deltalake 1.6.6, which reads the same table rightly. Seen on
# 2026-11-28: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet duckdb==1.5.5 duckdb-extension-delta==1.5.5 deltalake==1.6.6 pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import json
from importlib.util import find_spec
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

def write(mode):
    """A table of two columns, partitioned by one of them, under column mapping."""
    root = Path(mode)
    (root / "_delta_log").mkdir(parents=True)
    physical = {"id": ("col-1111", 1, "long"), "day": ("col-2222", 2, "string")}
    fields = [
        {"name": name, "type": kind, "nullable": True,
         "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": column}}
        for name, (column, number, kind) in physical.items()
    ]
    id_field = pa.field("col-1111", pa.int64(), metadata={"PARQUET:field_id": "1"})
    adds = []
    for number, day in enumerate(["monday", "tuesday"]):
        path = root / f"part-{number}.parquet"
        pq.write_table(pa.table([[number, number + 10]], schema=pa.schema([id_field])), path)
        adds.append({"add": {"path": path.name, "partitionValues": {"col-2222": day}, "size": path.stat().st_size,
                             "modificationTime": 0, "dataChange": True, "stats": '{"numRecords":2}'}})
    actions = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": {"id": "5f1c2ab0-0000-4000-8000-000000000001", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": ["day"],
                      "configuration": {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "2"},
                      "createdTime": 0}},
        *adds,
    ]
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(root)

package = Path(find_spec("duckdb_extension_delta").origin).parent
extension = next(package.rglob("delta.duckdb_extension"))
con = duckdb.connect(config={"allow_unsigned_extensions": True})
con.execute(f"LOAD '{extension}'")
for mode in ("name", "id"):
    table = write(mode)
    rows = con.execute(f"SELECT id, day FROM delta_scan('{table}') ORDER BY id").fetchall()
    print(mode, "duckdb:", rows)
    print(mode, "on monday:", con.execute(f"SELECT count(*) FROM delta_scan('{table}') WHERE day = 'monday'").fetchone()[0])
reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable("name"))
rows = pa.table(reader.execute("SELECT id, day FROM t ORDER BY id")).to_pylist()
print("name deltalake:", [tuple(row.values()) for row in rows])
PYTHON
)
echo "$seen"
expected="name duckdb: [(0, None), (1, None), (10, None), (11, None)]
name on monday: 0
id duckdb: [(0, None), (1, None), (10, None), (11, None)]
id on monday: 0
name deltalake: [(0, 'monday'), (1, 'tuesday'), (10, 'monday'), (11, 'tuesday')]"
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-28" >&2; exit 1; }
