"""Measures Iceberg tables against their plain files and against other readers: ``make bench-iceberg``.

A table without deletes, one with position deletes and one with deletion vectors, and the planning of 10,000 files.
What is compared takes turns in one process; ratios are taken round by round, and the figures are medians with their
spread, (max - min) / median. Ends with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data import make
from epochs import Row, in_turn, spread
from lake import DELETED, PLANNED_DAY, PLANNED_DAYS, PLANNED_FILES, PLANNED_ROWS, catalog_properties
from lake import make as make_lake
from loader import machine

DATA = Path(".bench")
BATCH_SIZES = (1024, 8192)
TABLES = {"plain": "no deletes", "positions": "5% position deletes", "vectors": "5% deletion vectors"}
WANTED = {"plain": 0.95, "positions": 0.85, "vectors": 0.85}
"""Live rows per second, relative to the rows per second of the plain files."""

PLANNING_SECONDS = 2.0
PLANNED_DAY_START = PLANNED_ROWS * (PLANNED_DAY + 1) * PLANNED_FILES // PLANNED_DAYS
PREDICATES = {
    "no filter": (None, PLANNED_FILES),
    "one partition of 100": (f"day = {PLANNED_DAY}", PLANNED_FILES // PLANNED_DAYS),
    "a range of ids": (f"id BETWEEN {PLANNED_DAY_START - 5} AND {PLANNED_DAY_START + 5}", 2),
}
"""Filters of the planned table, and the files that they leave, each a split of its own."""

Batches = Iterator[dict[str, Any]]


# --------------------------------------------------------------------------------------------------------
# The readers: each opens its table anew and returns batches of tensors


def plain_files(data: Path, batch_size: int) -> Batches:
    """tensorquery over the data files of the table, as Parquet files and nothing more."""
    import tensorquery as tq

    loader, _ = tq.create_dataloader(path=str(data), batch_size=batch_size)
    return iter(loader)


def tensorquery(lake: Path, table: str, batch_size: int) -> Batches:
    """tensorquery over the table, through its catalog."""
    import tensorquery as tq

    loader, _ = tq.create_dataloader(
        table=f"ns.{table}", catalog_config=catalog_properties(lake), batch_size=batch_size
    )
    return iter(loader)


def torch_dataloader_utils(lake: Path, table: str, batch_size: int) -> Batches:
    """The same of torch-dataloader-utils, in the training process too."""
    from torch_dataloader_utils import IcebergDataset

    loader, _ = IcebergDataset.create_dataloader(
        table=f"ns.{table}",
        catalog_config={"name": "lake", **catalog_properties(lake)},
        batch_size=batch_size,
        num_workers=0,
    )
    return iter(loader)


def pyiceberg(lake: Path, table: str, batch_size: int) -> Batches:
    """pyiceberg's scan, each column copied into a tensor; batches as they come, whatever `batch_size`."""
    import torch
    from pyiceberg.catalog import load_catalog

    del batch_size
    catalog = load_catalog("lake", **catalog_properties(lake))
    for batch in catalog.load_table(f"ns.{table}").scan().to_arrow_batch_reader():
        # A copy, as a training loop needs memory that it may write to.
        yield {
            name: torch.tensor(column.to_numpy(zero_copy_only=False))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }


def seconds(batches: Callable[[], Batches], rows: int) -> float:
    """Wall time from before the loader is made to after its last batch, of which there must be `rows`."""
    start, seen = time.perf_counter(), 0
    for batch in batches():
        seen += len(batch["l_orderkey"])
    took = time.perf_counter() - start
    if seen != rows:
        raise SystemExit(f"{seen} rows were read where {rows} are")
    return took


# --------------------------------------------------------------------------------------------------------
# What is measured


def truth(batches: Batches) -> tuple[int, int]:
    """Rows, and the sum of a column, by which readers are compared."""
    rows, total = 0, 0
    for batch in batches:
        rows += len(batch["l_orderkey"])
        total += int(batch["l_orderkey"].sum())
    return rows, total


def loading(rounds: int, lake: Path, data: Path) -> list[Row]:
    """The tables relative to the plain files and to the other readers, on the same rows."""
    found: list[Row] = []
    peers = {"torch-dataloader-utils": torch_dataloader_utils, "pyiceberg": pyiceberg}
    expected = {table: truth(pyiceberg(lake, table, 8192)) for table in TABLES}
    for table in TABLES:
        for name, reader in {"tensorquery": tensorquery, **peers}.items():
            got = truth(reader(lake, table, 8192))
            if got != expected[table]:
                raise SystemExit(f"{name} reads {got} in ns.{table}, pyiceberg {expected[table]}")
    for batch_size in BATCH_SIZES:
        works: dict[str, Callable[[], float]] = {}
        rows: dict[str, int] = {"tensorquery, plain files": expected["plain"][0]}

        def plain(size: int = batch_size) -> float:
            return seconds(lambda: plain_files(data, size), expected["plain"][0])

        works["tensorquery, plain files"] = plain
        for table, words in TABLES.items():
            for name, reader in {"tensorquery": tensorquery, **peers}.items():
                key = f"{name}, {words}"
                rows[key] = expected[table][0]

                def read(
                    reader: Any = reader, table: str = table, size: int = batch_size
                ) -> float:
                    return seconds(lambda: reader(lake, table, size), expected[table][0])

                works[key] = read
        taken = in_turn(rounds, works)
        for key, each in taken.items():
            median = statistics.median(each)
            print(
                f"| {key}, batch {batch_size} | {rows[key] / median / 1e6:.2f} million rows/s | "
                f"{median:.3f} s | {spread(each):.0%} |",
                flush=True,
            )

        def ratio(ours: str, theirs: str, taken: Any = taken, rows: Any = rows) -> float:
            """Rows per second by rows per second, round by round: what slows the machine slows both."""
            pairs = zip(taken[ours], taken[theirs], strict=True)
            return statistics.median(rows[ours] / a / (rows[theirs] / b) for a, b in pairs)

        for table, words in TABLES.items():
            ours, wanted = f"tensorquery, {words}", WANTED[table]
            part = ratio(ours, "tensorquery, plain files")
            what = f"{words} / plain files, live rows per second, batch {batch_size}"
            found.append((what, part, f">= {wanted}", part >= wanted))
            for peer in peers:
                factor = ratio(ours, f"{peer}, {words}")
                what = f"{words}, × {peer}, batch {batch_size}"
                found.append((what, factor, ">= 1", factor >= 1))
    return found


def planning(rounds: int, lake: Path, data: Path) -> list[Row]:
    """A table of 10,000 files: from a session of its own, the catalog included, to the splits of the shards."""
    import tensorquery as tq
    from pyiceberg.catalog import load_catalog

    del data

    def plan(name: str) -> float:
        predicate, files = PREDICATES[name]
        where = f" WHERE {predicate}" if predicate else ""
        start = time.perf_counter()
        session = tq.Session()
        session.register_iceberg("lake", catalog_properties(lake))
        plan = session.sql(f"SELECT * FROM lake.ns.planned{where}").plan_shards(world_size=2)
        took = time.perf_counter() - start
        if plan.num_splits != files:
            raise SystemExit(f"{plan.num_splits} splits under {name!r}, not {files}")
        return took

    def scan() -> float:
        start = time.perf_counter()
        catalog = load_catalog("lake", **catalog_properties(lake))
        files = list(catalog.load_table("ns.planned").scan().plan_files())
        took = time.perf_counter() - start
        if len(files) != PLANNED_FILES:
            raise SystemExit(f"pyiceberg plans {len(files)} files, not {PLANNED_FILES}")
        return took

    works: dict[str, Callable[[], float]] = {
        name: (lambda name=name: plan(name))  # type: ignore[misc]
        for name in PREDICATES
    }
    found: list[Row] = []
    for name, taken in in_turn(rounds, {**works, "pyiceberg": scan}).items():
        median = statistics.median(taken)
        who = "pyiceberg, no filter" if name == "pyiceberg" else f"tensorquery, {name}"
        print(
            f"| planning {PLANNED_FILES} files, {who} | | {median:.3f} s | {spread(taken):.0%} |",
            flush=True,
        )
        if name != "pyiceberg":
            what = f"seconds to plan {PLANNED_FILES} files, {name}"
            wanted = f"< {PLANNING_SECONDS:g}"
            found.append((what, median, wanted, median < PLANNING_SECONDS))
    return found


PARTS = {"loading": loading, "planning": planning}


def load() -> str:
    """The load averages of one and five minutes: figures of a busy machine are worth less."""
    one, five, _ = os.getloadavg()
    return f"load average {one:.1f} (1 min), {five:.1f} (5 min)"


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (default 7)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    lake = DATA / "lake"
    data = make_lake(make(DATA), lake)
    print(f"{machine()}; {load()} before\n")
    print("| work | throughput | time | spread |\n|---|---:|---:|---:|")
    found = [row for part in options.only for row in PARTS[part](options.rounds, lake, data)]
    print(f"\n{load()} after; {DELETED:.0%} of the rows deleted, at random positions")
    print("\n| target | figure | wanted | |\n|---|---:|---:|---|")
    for what, figure, wanted, met in found:
        print(f"| {what} | {figure:.3f} | {wanted} | {'met' if met else 'MISSED'} |")
    sys.exit(0 if all(met for *_, met in found) else 1)


if __name__ == "__main__":
    main()
