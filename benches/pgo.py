"""Training runs for a release build: loaders in typical use, over small files that are made here.

A build with counters runs this, and the next one is compiled by what they counted (profile-guided optimization, see
https://doc.rust-lang.org/rustc/profile-guided-optimization.html): `maturin build --pgo` does it by itself, `make bench` in
folders that it keeps. Code that never runs here is compiled for size, so that a query touches fewer pages of the library. The
code that queries need must run here; how long it runs does not matter.

    python benches/pgo.py [DECODE]

DECODE is the program of the decode limit, built with counters too: what is compared with a trained loader is trained.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq

import tensorquery as tq

ROWS = 600_000
NUMBERS = [
    "l_orderkey", "l_partkey", "l_suppkey", "l_linenumber", "l_quantity", "l_extendedprice", "l_discount", "l_tax",
]  # fmt: skip
FEATURES = [f"f{number}" for number in range(64)]


def lineitem() -> pa.Table:
    dice = np.random.default_rng(seed=1)
    return pa.table({
        "l_orderkey": np.sort(dice.integers(0, 6_000_000, ROWS)),
        "l_partkey": dice.integers(1, 200_001, ROWS),
        "l_suppkey": dice.integers(1, 10_001, ROWS),
        "l_linenumber": dice.integers(1, 8, ROWS).astype(np.int32),
        "l_quantity": dice.integers(1, 51, ROWS).astype(np.float64),
        "l_extendedprice": dice.integers(90_000, 10_500_000, ROWS) / 100,
        "l_discount": dice.integers(0, 11, ROWS) / 100,
        "l_tax": dice.integers(0, 9, ROWS) / 100,
        "l_shipdate": dice.integers(8000, 11000, ROWS).astype("datetime64[D]"),
        "l_shipmode": dice.choice(["AIR", "RAIL", "SHIP", "TRUCK"], ROWS),
        "l_comment": [f"comment {number % 977}" for number in range(ROWS)],
    })  # fmt: skip


def wide() -> pa.Table:
    dice = np.random.default_rng(seed=2)
    rows = 100_000
    features = {name: dice.random(rows, dtype=np.float32) for name in FEATURES}
    label = dice.integers(0, 2, rows).astype(np.int32)
    return pa.table({"id": np.arange(rows, dtype=np.int32), **features, "label": label})


def embeddings() -> pa.Table:
    values = np.random.default_rng(seed=3).random(40_000 * 256, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(values, 256)
    return pa.table({"vector": vectors, "name": [f"row {number}" for number in range(40_000)]})


def write(table: pa.Table, folder: Path, files: int, **options: Any) -> str:
    """Cuts the table into files; returns what matches all of them."""
    folder.mkdir()
    each = -(-table.num_rows // files)
    for number in range(files):
        part = table.slice(number * each, each)
        pq.write_table(part, folder / f"{number}.parquet", write_page_index=True, **options)
    return str(folder / "*.parquet")


def read(query: str | None = None, **options: Any) -> None:
    loader, _ = tq.create_dataloader(query, **options)
    if not sum(1 for _ in loader):
        raise SystemExit(f"no rows: {query or options}")


def scan(files: str, batch_size: int) -> None:
    numbers: dict[str, Any] = {"path": files, "columns": NUMBERS, "batch_size": batch_size}
    read(**numbers)
    read(**numbers, shuffle=True)
    read(**numbers, filters="l_orderkey >= 3000000 AND l_orderkey <= 3060000")
    read(**numbers, filters="l_partkey BETWEEN 100000 AND 102000")
    read(path=files, batch_size=batch_size, filters="l_shipmode IN ('AIR', 'SHIP')")


def compute(files: str, stages: Path) -> None:
    """Run the SQL of typical training sets: expressions, joins, groups and windows."""
    read(
        "SELECT CASE WHEN l_quantity > 25 THEN 1 ELSE 0 END AS y, coalesce(l_tax, 0) AS x, "
        f"extract(year FROM l_shipdate) AS year FROM '{files}'"
    )
    read(
        f"SELECT a.l_tax * 2 AS tax, b.total FROM '{files}' a JOIN (SELECT l_suppkey, sum(l_quantity) AS total "
        f"FROM '{files}' GROUP BY l_suppkey) b ON a.l_suppkey = b.l_suppkey WHERE a.l_discount > 0.02",
        stage_dir=stages,
    )
    read(
        f"SELECT l_tax, row_number() OVER (PARTITION BY l_suppkey ORDER BY l_orderkey) AS n FROM '{files}'",
        stage_dir=stages,
    )
    read(
        path=files, columns=NUMBERS[:3], filters="l_shipmode = 'AIR'", shuffle="global",
        stage_dir=stages,
    )  # fmt: skip


def decode(program: str, files: str, columns: list[str] | None = None) -> None:
    chosen = ["--columns", ",".join(columns)] if columns else []
    subprocess.run([program, *chosen, *Path(files).parent.glob("*.parquet")], check=True)


def main(programs: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = lineitem()
        tall = [
            write(rows, folder / "snappy", 4, row_group_size=1 << 16, max_rows_per_page=1 << 20),
            write(rows, folder / "zstd", 4, row_group_size=1 << 16, max_rows_per_page=20_000, compression="zstd"),
        ]  # fmt: skip
        for files in tall:
            scan(files, 1024)
            scan(files, 8192)
            compute(files, folder / "stages")
        features = write(wide(), folder / "wide", 2, row_group_size=1 << 14, use_dictionary=False)
        read(path=features, batch_size=8192, columns=FEATURES, stack={"x": FEATURES})
        read(path=features, batch_size=1024, stack={"x": FEATURES}, shuffle=True)
        read(path=features, batch_size=8192, columns=["f3", "f40"])
        vectors = write(
            embeddings(), folder / "embeddings", 1, row_group_size=10_000, use_dictionary=["name"]
        )
        read(path=vectors, batch_size=8192, columns=["vector"])
        read(path=vectors, batch_size=1024, shuffle=True)
        csv.write_csv(rows.slice(0, 50_000), folder / "rows.csv")
        feather.write_feather(rows.slice(0, 50_000), folder / "rows.arrow")
        for other in ("rows.csv", "rows.arrow"):
            read(path=str(folder / other), columns=NUMBERS, batch_size=1024)
        for program in programs:
            for files in tall:
                decode(program, files, NUMBERS)
            decode(program, features)
            decode(program, vectors, ["vector"])


if __name__ == "__main__":
    main(sys.argv[1:])
