#!/usr/bin/env bash
# DataFusion 55 lets NULL match NULL for `=` if another condition of the join is `IS NOT DISTINCT FROM`.
#
# A hash join has one setting for all of its keys: NULL equals NULL, or it does not. One would expect an optimiser that turns
# `IS NOT DISTINCT FROM` into a key to keep every `=` out of that join, or the other way around. But an equality of WHERE, and keys of
# other joins that it reorders, become keys of the join by `IS NOT DISTINCT FROM`: rows that are NULL on both sides pass. The two
# conditions in one ON clause are right. DuckDB is right in all forms.
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

rows = pa.table({"a": [1, None], "x": pa.array([None, None], pa.int64())})
more = pa.table({"a": [1, None, 2], "x": pa.array([None, None, 3], pa.int64())})
context, judge = datafusion.SessionContext(), duckdb.connect()
for name, table in (("t", rows), ("u", rows), ("v", more)):
    context.register_record_batches(name, [table.to_batches()])
    judge.register(name, table)
for source in (
    "t JOIN u ON (t.a IS NOT DISTINCT FROM u.a) AND t.x = u.x",
    "t JOIN u ON (t.a IS NOT DISTINCT FROM u.a) WHERE t.x = u.x",
    "(t JOIN u ON t.a = u.a) JOIN v ON (t.x IS NOT DISTINCT FROM v.x)",
    "v JOIN (t JOIN u ON t.x = u.x) ON (u.x IS NOT DISTINCT FROM v.x)",
):
    sql = f"SELECT count(*) AS n FROM {source}"
    print(source, "| datafusion", context.sql(sql).to_pylist()[0]["n"], "| duckdb", judge.sql(sql).fetchall()[0][0])
PYTHON
)
echo "$seen"
expected='t JOIN u ON (t.a IS NOT DISTINCT FROM u.a) AND t.x = u.x | datafusion 0 | duckdb 0
t JOIN u ON (t.a IS NOT DISTINCT FROM u.a) WHERE t.x = u.x | datafusion 2 | duckdb 0
(t JOIN u ON t.a = u.a) JOIN v ON (t.x IS NOT DISTINCT FROM v.x) | datafusion 4 | duckdb 2
v JOIN (t JOIN u ON t.x = u.x) ON (u.x IS NOT DISTINCT FROM v.x) | datafusion 8 | duckdb 0'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
