#!/usr/bin/env bash
# parquet-go forgets the numbers before a NaN: the bounds of a float column cover only the numbers after it.
#
# The Parquet format says that the bounds of floats must not be NaN, and that a reader ignores bounds that are NaN. parquet-go
# 0.25.1 writes bounds without NaN that leave out values: the minimum of 1, 2, NaN, 8, 9 is 8. A reader that trusts them loses
# rows. DuckDB and polars find neither row of `x <= 2`, pyarrow finds both.
# Format: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift (ColumnOrder, TYPE_DEFINED_ORDER)
#
# Versions: parquet-go 0.25.1, pyarrow 26.0.1, duckdb 2.0.1, polars 2.1.0. Needs Go, 1.24 or later. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
cat >main.go <<'GO'
package main

import (
	"math"
	"os"

	"github.com/parquet-go/parquet-go"
)

type row struct {
	X float64 `parquet:"x"`
}

func main() {
	file, err := os.Create("t.parquet")
	if err != nil {
		panic(err)
	}
	writer := parquet.NewGenericWriter[row](file)
	if _, err := writer.Write([]row{{1}, {2}, {math.NaN()}, {8}, {9}}); err != nil {
		panic(err)
	}
	if err := writer.Close(); err != nil {
		panic(err)
	}
	if err := file.Close(); err != nil {
		panic(err)
	}
}
GO
go mod init example.org/bounds >/dev/null 2>&1
go get github.com/parquet-go/parquet-go@v0.25.1 >/dev/null 2>&1
go run .
python3 -m venv venv
venv/bin/python -m pip install --quiet pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
seen=$(venv/bin/python - <<'PYTHON'
import duckdb
import polars
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

bounds = pq.ParquetFile("t.parquet").metadata.row_group(0).column(0).statistics
print("bounds", bounds.min, bounds.max)
table = pq.read_table("t.parquet")
print("values", *table["x"].to_pylist())
print("rows of x <= 2 in memory", table.filter(pc.field("x") <= 2).num_rows)
print("pyarrow", ds.dataset("t.parquet").to_table(filter=pc.field("x") <= 2).num_rows)
print("duckdb", duckdb.sql("SELECT count(*) FROM 't.parquet' WHERE x <= 2").fetchall()[0][0])
print("polars", polars.scan_parquet("t.parquet").filter(polars.col("x") <= 2).collect().height)
PYTHON
)
echo "$seen"
expected="bounds 8.0 9.0
values 1.0 2.0 nan 8.0 9.0
rows of x <= 2 in memory 2
pyarrow 2
duckdb 0
polars 0"
[ "$seen" = "$expected" ] || { echo "this has changed" >&2; exit 1; }
