"""TPC-H lineitem at scale factor 1, eight numeric columns, six million rows, in several shapes.

The rows are in the order of l_orderkey, as the generator writes them, so that a range of keys lies in few row groups; any
range of l_partkey is scattered over all of them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from data.once import DATA, once

FILES = 8
ROW_GROUP = 1 << 17
PAGE_ROWS = 20_000
"""Rows of a page, about, as Parquet writers other than pyarrow limit them by default."""

LARGE_COPIES = 4
COLUMNS = [
    "l_orderkey", "l_partkey", "l_suppkey", "l_linenumber",
    "l_quantity", "l_extendedprice", "l_discount", "l_tax",
]  # fmt: skip
PART_KEYS = 200_000
"""l_partkey is uniform in 1..=PART_KEYS at scale factor 1."""

Bounds = tuple[int, int]


def make(folder: Path = DATA) -> Path:
    """Eight files, snappy, row groups of 131,072 rows, a page index as pyarrow makes it: a page or two per chunk."""
    return once(folder / "lineitem", _generate)


def zstd() -> Path:
    """The files of `make`, compressed with zstd."""
    return _rewritten("lineitem-zstd", compression="zstd", write_page_index=True)


def paged() -> Path:
    """The files of `make`, with a page index for pages of about 20,000 rows."""
    return _rewritten("paged", **_SMALL_PAGES)


def bare() -> Path:
    """The files of `make`, without a page index."""
    return _rewritten("lineitem-bare", write_page_index=False)


def single() -> Path:
    """The first of the eight files."""
    return min(make().glob("*.parquet"))


def large() -> Path:
    """The rows four times over in one file, 184 row groups and small pages: 24 million rows."""

    def write(target: Path) -> None:
        tables = [pq.read_table(file) for file in _files()]
        with pq.ParquetWriter(target / "large.parquet", tables[0].schema, **_SMALL_PAGES) as writer:
            everything = pa.concat_tables(tables * LARGE_COPIES).combine_chunks()
            writer.write_table(everything, row_group_size=ROW_GROUP)

    return once(DATA / "lineitem-large", write)


def grouped() -> Path:
    """The rows in one file whose row groups decode to 64 MiB, the largest for which memory has one bound."""

    def write(target: Path) -> None:
        table = pa.concat_tables([pq.read_table(file) for file in _files()]).combine_chunks()
        pq.write_table(table, target / "grouped.parquet", row_group_size=1 << 20)

    return once(DATA / "lineitem-grouped", write)


def beyond() -> Path:
    """The rows four times over in one file whose row groups decode to 256 MiB."""

    def write(target: Path) -> None:
        tables = [pq.read_table(file) for file in _files()]
        with pq.ParquetWriter(target / "beyond.parquet", tables[0].schema) as writer:
            everything = pa.concat_tables(tables * LARGE_COPIES).combine_chunks()
            writer.write_table(everything, row_group_size=1 << 22)

    return once(DATA / "lineitem-beyond", write)


def text(form: str) -> Path:
    """The rows of the first two files, 1.5 million, as "csv" (64 MB) or "json" (an object per line, 250 MB)."""

    def write(target: Path) -> None:
        for file in _files()[:2]:
            table = pq.read_table(file)
            path = target / f"{file.stem}.{form}"
            if form == "csv":
                pc_csv.write_csv(table, path)
                continue
            with path.open("w") as lines:
                for batch in table.to_batches(max_chunksize=10_000):
                    lines.writelines(f"{json.dumps(row)}\n" for row in batch.to_pylist())

    return once(DATA / f"lineitem-{form}", write)


def key_range() -> Bounds:
    """The 1% of order keys in the middle, as the generator's keys go: not at a row group's border."""
    found = DATA / "range.json"
    if not found.exists():
        keys = ds.dataset(make()).to_table(columns=["l_orderkey"])["l_orderkey"]
        bounds = pc.quantile(keys, [0.495, 0.505], interpolation="lower").to_pylist()
        found.write_text(json.dumps(bounds))
    low, high = json.loads(found.read_text())
    return low, high


def scattered_range() -> Bounds:
    """1% of the part keys, which 1% of the rows have, spread over all row groups and pages."""
    middle = PART_KEYS // 2
    return middle, middle + PART_KEYS // 100 - 1


_SMALL_PAGES: dict[str, Any] = {
    "data_page_size": PAGE_ROWS * 8,
    "use_dictionary": False,
    "write_page_index": True,
}


def _files() -> list[Path]:
    return sorted(make().glob("*.parquet"))


def _rewritten(name: str, **options: Any) -> Path:
    def write(target: Path) -> None:
        for file in _files():
            table = pq.read_table(file)
            pq.write_table(table, target / file.name, row_group_size=ROW_GROUP, **options)

    return once(DATA / name, write)


def _generate(target: Path) -> None:
    raw = target / "raw"
    raw.mkdir()
    command = [_generator(), "parquet", "-s", "1", "--tables=lineitem", f"--parts={FILES}"]
    subprocess.run([*command, f"--output-dir={raw}"], check=True, stdout=subprocess.DEVNULL)
    for part, file in enumerate(sorted(raw.rglob("*.parquet"), key=_part_number)):
        table = pq.read_table(file, columns=COLUMNS)
        columns = [_number(table[name]) for name in COLUMNS]
        pq.write_table(
            pa.table(dict(zip(COLUMNS, columns, strict=True))),
            target / f"part-{part}.parquet",
            row_group_size=ROW_GROUP,
            write_page_index=True,
        )
    shutil.rmtree(raw)


def _generator() -> Path:
    """tpchgen-cli from an environment on the path: that of the benchmarks takes most packages from another."""
    for entry in filter(lambda entry: entry.endswith("site-packages"), sys.path):
        environment = Path(entry).parents[2]  # above lib/python3.x/site-packages
        program = environment / "bin" / "tpchgen-cli"
        if program.exists():
            return program
    raise SystemExit("tpchgen-cli is not installed; requirements-dev.txt names it: make setup")


def _part_number(file: Path) -> int:
    return int(file.stem.rsplit(".", 1)[-1])


def _number(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.float64()) if pa.types.is_decimal(column.type) else column
