#!/usr/bin/env bash
# DataFusion 55: ORDER BY of a list with LIMIT loses the first rows, where a list with NULL in it is among those read first.
#
# A sort that keeps n rows leaves out whatever is not below the last of them, by a comparison with `<`. One would expect the comparison and
# the sort to have one order. The sort has NULL in a list above all values (for ASC, as its NULLS LAST), and `<` has it below all values: once
# the n rows kept end with [NULL], no list is below it, and all rows after them are lost. Without LIMIT the order is right. DuckDB has both alike.
#
# Versions: datafusion 55.0.0 (Python package; 53.1 of the crates as well), pyarrow 26.0.1, duckdb 2.0.1. Seen on 2026-11-27: see `expected`
# below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet datafusion==55.0.0 pyarrow==26.0.1 duckdb==2.0.1
seen=$(venv/bin/python - <<'PYTHON'
import datafusion
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

rows = pa.table({"i": range(8), "v": [[None], [7], [8], [9], [1], [2], [3], [4]]})
pq.write_table(rows, "t.parquet", row_group_size=2)
config = datafusion.SessionConfig().with_target_partitions(1).with_batch_size(4)
context = datafusion.SessionContext(config)
context.register_parquet("t", "t.parquet")
for end in ("", " LIMIT 4", " LIMIT 3"):
    sql = f"SELECT i FROM t ORDER BY v NULLS LAST, i{end}"
    found = [row["i"] for row in context.sql(sql).to_pylist()]
    judged = [i for (i,) in duckdb.sql(sql.replace("FROM t", "FROM 't.parquet'")).fetchall()]
    print(f"ORDER BY v{end}: datafusion", found, "duckdb", judged)
found = [row["i"] for row in context.sql("SELECT i FROM t WHERE v < [2] ORDER BY i").to_pylist()]
judged = [i for (i,) in duckdb.sql("SELECT i FROM 't.parquet' WHERE v < [2] ORDER BY i").fetchall()]
print("v < [2]: datafusion", found, "duckdb", judged)
PYTHON
)
echo "$seen"
expected='ORDER BY v: datafusion [4, 5, 6, 7, 1, 2, 3, 0] duckdb [4, 5, 6, 7, 1, 2, 3, 0]
ORDER BY v LIMIT 4: datafusion [1, 2, 3, 0] duckdb [4, 5, 6, 7]
ORDER BY v LIMIT 3: datafusion [4, 5, 6] duckdb [4, 5, 6]
v < [2]: datafusion [0, 4] duckdb [4]'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
