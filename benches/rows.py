"""Measures rows at random by number against their targets: ``make bench-rows``.

`tq.QueryRows` beside the map-style datasets of Hugging Face and of Lance, over the same eight numeric columns, on one core: one
call for a million rows, and a call for each batch. What is compared takes turns in one process, and all must give the same sums; the
figures are medians over the rounds and their spread, (max - min) / median. A library that is not installed is a line of the
table. Ends with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROWS = 10_000_000
ROW_GROUP = 131_072
TAKEN = 1_000_000
BATCH_SIZES = (64, 256, 4096)

Take = Callable[[Any], Any]
"""Rows by number, as a dict of NumPy arrays."""


def write(folder: Path) -> None:
    """Eight numeric columns of random values in four files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(20)
    for file in range(4):
        rows = ROWS // 4
        columns: dict[str, Any] = {"id": np.arange(rows) + file * rows}
        columns |= {f"f{i}": rng.random(rows, np.float32) for i in range(4)}
        columns |= {f"i{i}": rng.integers(0, 1000, rows, np.int32) for i in range(2)}
        columns["d"] = rng.random(rows)
        pq.write_table(pa.table(columns), folder / f"{file}.parquet", row_group_size=ROW_GROUP)


def ours(folder: Path) -> Take:
    """`QueryRows`."""
    import tensorquery as tq

    session = tq.Session()
    session.register_parquet("t", str(folder))
    return tq.QueryRows(session.table("t")).take


def hugging_face(folder: Path) -> Take:
    """`datasets.Dataset` over its mapped Arrow files, as Arrow, which is its fastest format; each column as an array."""
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, folder.glob("*.parquet")))
    rows = datasets.Dataset.from_parquet(files, cache_dir=str(folder.parent / "rows-datasets"))
    rows = rows.with_format("arrow")
    return lambda indices: arrays(rows[indices])


def lance(folder: Path) -> Take:
    """`LanceDataset.take` over a converted table, each column as an array without a copy."""
    import lance as library
    import pyarrow.dataset as ds

    place = folder.parent / "rows.lance"
    if not place.exists():
        found = ds.dataset(folder, format="parquet")
        library.write_dataset(found.scanner().to_reader(), str(place), schema=found.schema)
    rows = library.dataset(str(place))
    return lambda indices: arrays(rows.take(indices))


def arrays(table: Any) -> dict[str, Any]:
    """The columns of an Arrow table as NumPy arrays."""
    return {name: table[name].to_numpy() for name in table.column_names}


LIBRARIES: dict[str, Callable[[Path], Take]] = {
    "tensorquery": ours,
    "datasets": hugging_face,
    "lance": lance,
}


def seconds_of(take: Take, batches: Sequence[Any]) -> tuple[float, float]:
    """Wall time of all batches, and a sum by which libraries are compared."""
    start = time.perf_counter()
    found = [take(batch) for batch in batches]
    taken = time.perf_counter() - start
    return taken, float(sum(float(each["d"].sum()) + int(each["id"].sum()) for each in found))


def measure(folder: Path, rounds: int, peer_rows: int) -> list[tuple[str, float, str, bool]]:
    """All libraries in turns, by size of batch; peers take fewer rows where they are slow."""
    takes: dict[str, Take] = {}
    for name, open_rows in LIBRARIES.items():
        try:
            takes[name] = open_rows(folder)
        except ImportError as error:
            print(f"| {name} | not installed: {error} | | |", flush=True)
    numbers = np.random.default_rng(7).integers(0, ROWS, TAKEN)
    found: list[tuple[str, float, str, bool]] = []
    for size in (*BATCH_SIZES, TAKEN):
        rates: dict[str, list[float]] = {name: [] for name in takes}
        chosen = numbers if size == TAKEN else numbers[: peer_rows // size * size]
        batches = np.split(chosen, len(chosen) // size)
        for number in range(rounds + 1):
            sums = {}
            for name, take in takes.items():
                taken, sums[name] = seconds_of(take, batches)
                # The first round warms caches.
                if number:
                    rates[name].append(len(chosen) / taken)
            if max(sums.values()) - min(sums.values()) > 1e-6 * abs(max(sums.values())):
                raise SystemExit(f"the libraries disagree about the rows: {sums}")
        for name, each in rates.items():
            median = statistics.median(each)
            print(
                f"| {name} | {size:,} | {median / 1e6:.3f} million rows/s | {(max(each) - min(each)) / median:.0%} |",
                flush=True,
            )
        mine = rates["tensorquery"]
        if size == TAKEN:
            rate = statistics.median(mine) / 1e6
            found.append(("million random rows/s in one call", rate, ">= 1", rate >= 1))
        for name in sorted(rates.keys() - {"tensorquery"}):
            ratio = statistics.median(a / b for a, b in zip(mine, rates[name], strict=True))
            found.append((f"batches of {size:,}: tensorquery / {name}", ratio, ">= 5", ratio >= 5))
    return found


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument(
        "--rows", type=int, default=100_000, help="rows by batches in a round (default 100,000)"
    )
    options = parser.parse_args()
    # Before any library counts cores or starts threads.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.path.insert(0, str(HERE))
    from compare.machine import machine
    from compare.report import end_with
    from data.once import DATA, once

    DATA.mkdir(exist_ok=True)
    os.environ.setdefault("TENSORQUERY_STAGES", str(DATA / "stages"))
    folder = once(DATA / "rows", write)
    print(f"{machine()}, one core, load average {os.getloadavg()[0]:.1f}\n")
    print("| library | rows in a call | throughput | spread |\n|---|---:|---:|---:|")
    found = measure(folder, options.rounds, options.rows)
    end_with(found)


if __name__ == "__main__":
    main()
