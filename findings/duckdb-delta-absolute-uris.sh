#!/usr/bin/env bash
# DuckDB's delta extension 1.5.5: a data file that the log names by an absolute URI is looked for below the table's folder, and is not found.
#
# Delta's protocol lets `add.path` be a relative path or an absolute URI. Spark writes `file:/…` (or `s3://…`) into shallow clones, whose files
# lie in the table that was cloned, so no shallow clone can be read. A bare absolute path, which is no URI, is read, and so is a relative path
# that leaves the folder.
#
# Versions: duckdb 1.5.5, duckdb-extension-delta 1.5.5, pyarrow 26.0.1; deltalake 1.6.6 reads all four. Seen on 2026-11-28: see
# `expected` below.
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

package = Path(find_spec("duckdb_extension_delta").origin).parent
con = duckdb.connect(config={"allow_unsigned_extensions": True})
con.execute(f"LOAD '{next(package.rglob('delta.duckdb_extension'))}'")
source = Path("source").absolute()
source.mkdir()
file = source / "part-0.parquet"
pq.write_table(pa.table({"id": [1, 2]}), file)
schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
ways = {"file:/": f"file:{file}", "file:///": f"file://{file}", "absolute path": str(file), "relative path": f"../source/{file.name}"}

def rows_of(read):
    try:
        return read()
    except Exception as error:
        return type(error).__name__

def of_deltalake(root):
    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root)))
    return pa.table(reader.execute("SELECT id FROM t ORDER BY id"))["id"].to_pylist()

for number, (name, path) in enumerate(ways.items()):
    root = Path(f"t{number}")
    (root / "_delta_log").mkdir(parents=True)
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "5f1c2ab0-0000-4000-8000-000000000001", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps(schema), "partitionColumns": [], "configuration": {}, "createdTime": 0}},
        {"add": {"path": path, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 0, "dataChange": True}},
    ]
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    duck = rows_of(lambda: [row[0] for row in con.execute(f"SELECT id FROM delta_scan('{root}') ORDER BY id").fetchall()])
    print(f"{name}: duckdb {duck}, deltalake {rows_of(lambda: of_deltalake(root))}")
PYTHON
)
echo "$seen"
expected="file:/: duckdb IOException, deltalake [1, 2]
file:///: duckdb IOException, deltalake [1, 2]
absolute path: duckdb [1, 2], deltalake [1, 2]
relative path: duckdb [1, 2], deltalake [1, 2]"
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-28" >&2; exit 1; }
