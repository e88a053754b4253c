#!/usr/bin/env bash
# pyarrow's ORC writer writes the wrong rows of a struct column if the table is a slice: it begins at the first row of the whole.
#
# A slice of an Arrow table is a table, so one would expect its file to equal that of a copy. The ORC writer of Arrow C++ ignores
# the start of the slice for struct columns and their fields, while plain columns and lists beside them are right. Rows get the
# structs of other rows, without a word. `table.take` of all rows makes a copy, which is written rightly.
# Format: https://orc.apache.org/specification/
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
import pyarrow.orc as orc

whole = pa.table(
    {
        "id": range(6),
        "list": [[0], [1], [2], [3], [4], [5]],
        "struct": [{"a": 0}, {"a": 1}, None, {"a": 3}, None, {"a": 5}],
    }
)
for name, table in (("slice", whole.slice(2)), ("copy", whole.take(pa.array([2, 3, 4, 5])))):
    orc.write_table(table, "t.orc")
    print(name, *(f"{r['id']}:{r['list'][0]}:{r['struct'] and r['struct']['a']}" for r in orc.read_table("t.orc").to_pylist()))
PYTHON
)
echo "$seen"
expected='slice 2:2:0 3:3:1 4:4:None 5:5:3
copy 2:2:None 3:3:3 4:4:None 5:5:5'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
