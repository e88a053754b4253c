"""Makes the benchmark's files: TPC-H lineitem at scale factor 1, eight numeric columns, eight Parquet files.

The rows are in the order of l_orderkey, as the generator writes them, so that a range of keys lies in few row
groups. Run by ``make bench``; takes about half a minute once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILES = 8
ROW_GROUP = 1 << 17
COLUMNS = [
    "l_orderkey", "l_partkey", "l_suppkey", "l_linenumber",
    "l_quantity", "l_extendedprice", "l_discount", "l_tax",
]  # fmt: skip


def make(folder: Path) -> Path:
    """Write the files below `folder` unless they are there; return their directory."""
    target = folder / "lineitem"
    if (folder / "complete").exists():
        return target
    shutil.rmtree(folder, ignore_errors=True)
    raw = folder / "raw"
    raw.mkdir(parents=True)
    target.mkdir()
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [
        generator,
        "parquet",
        "-s",
        "1",
        "--tables=lineitem",
        f"--parts={FILES}",
        f"--output-dir={raw}",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for part, file in enumerate(sorted(raw.rglob("*.parquet"), key=_part_number)):
        table = pq.read_table(file, columns=COLUMNS)
        columns = [_number(table[name]) for name in COLUMNS]
        numbers = pa.table(dict(zip(COLUMNS, columns, strict=True)))
        pq.write_table(
            numbers,
            target / f"part-{part}.parquet",
            row_group_size=ROW_GROUP,
            write_page_index=True,
        )
    shutil.rmtree(raw)
    (folder / "complete").touch()
    return target


def _part_number(file: Path) -> int:
    return int(file.stem.rsplit(".", 1)[-1])


def _number(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.float64()) if pa.types.is_decimal(column.type) else column


if __name__ == "__main__":
    print(make(Path(".bench")))
