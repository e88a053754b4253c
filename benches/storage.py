"""Measures a store that is far away: ``make bench-storage``.

MinIO, and between it and the loader the fault proxy of the tests, which adds 50 ms to every request. What is compared
takes turns in one process and goes through the proxy, with and without latency; the figures are medians over the rounds
and their spread, (max - min) / median. Bytes and requests are counted by the proxy. Ends with the targets met and
missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from compare.machine import load, machine
from compare.report import Row, end_with
from data import key_range, make, paged
from epochs import in_turn, spread

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "python" / "helpers"))

from stores import Faults, fault_proxy, serve_minio  # noqa: E402 (found by the path above)

DATA = Path(".bench")
LATENCY = {"kind": "latency", "seconds": 0.05, "method": ".*"}
COPIES = 6
"""How often the files are in the store: 36 million rows, a scan of seconds, as opposed to its start."""

SMALL_FILES = 10_000
WANTED_RATIO, WANTED_BYTES, WANTED_SECONDS = 0.8, 0.03, 15.0


def open_loader(faults: Faults, prefix: str, batch_size: int, **options: Any) -> tuple[Any, Any]:
    """A loader of the objects below `prefix`, by way of the proxy."""
    import tensorquery as tq

    path = f"{faults.store.root}/{prefix}/"
    return tq.create_dataloader(
        path=path, storage_options=faults.store.options, batch_size=batch_size, **options
    )


def rows_of(loader: Any, column: str) -> int:
    """The rows of one epoch."""
    return sum(len(batch[column]) for batch in loader)


def fill(faults: Faults, prefix: str, files: list[Path], copies: int) -> tuple[int, int]:
    """Put the files into the store, `copies` times; their rows and bytes."""
    objects = ((f"{prefix}/{copy}-{file.name}", file) for copy in range(copies) for file in files)
    faults.store.put_all((key, file.read_bytes()) for key, file in objects)
    rows = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    return copies * rows, copies * sum(file.stat().st_size for file in files)


def scans(faults: Faults, rounds: int, files: list[Path]) -> list[Row]:
    """Full scans with and without latency: rows per second, the loader's making included."""
    rows, _ = fill(faults, "far", files, COPIES)
    figures: dict[str, dict[str, Any]] = {}

    def scan(name: str, rules: list[dict[str, Any]]) -> float:
        faults.set(*rules)
        start = time.perf_counter()
        loader, _ = open_loader(faults, "far", 8192)
        found = rows_of(loader, "l_orderkey")
        took = time.perf_counter() - start
        if found != rows:
            raise SystemExit(f"{found} rows of {rows}, {name}")
        figures[name] = faults.figures()
        return took

    works: dict[str, Callable[[], float]] = {
        "near": lambda: scan("near", []),
        "far": lambda: scan("far", [LATENCY]),
    }
    seconds = in_turn(rounds, works)
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"| full scan, {name} | {rows / median / 1e6:.2f} | {median:.2f} | {spread(values):.0%} "
            f"| {figures[name]['requests']} | {figures[name]['most_at_once']} |"
        )
    ratio = statistics.median(
        near / far for near, far in zip(seconds["near"], seconds["far"], strict=True)
    )
    met = ratio >= WANTED_RATIO
    return [("full scan, rows per second with 50 ms / without", ratio, f">= {WANTED_RATIO}", met)]


def ranges(faults: Faults, rounds: int, _: list[Path]) -> list[Row]:
    """The bytes that a filter of 1% of the order keys reads, footers included."""
    rows, size = fill(faults, "paged", sorted(paged().glob("*.parquet")), 1)
    low, high = key_range()
    filters = f"l_orderkey BETWEEN {low} AND {high}"
    figures: dict[str, Any] = {}

    def scan() -> float:
        faults.set(LATENCY)
        start = time.perf_counter()
        loader, _ = open_loader(faults, "paged", 1024, filters=filters)
        found = rows_of(loader, "l_orderkey")
        took = time.perf_counter() - start
        if not 0.005 < found / rows < 0.015:
            raise SystemExit(f"{found} rows of {rows} are not about 1%")
        figures.update(faults.figures(), rows=found)
        return took

    values = in_turn(rounds, {"range": scan})["range"]
    print(
        f"| 1% range, far | {figures['rows'] / statistics.median(values) / 1e6:.2f} | "
        f"{statistics.median(values):.2f} | {spread(values):.0%} | {figures['requests']} "
        f"| {figures['most_at_once']} |"
    )
    part = figures["bytes"] / size
    met = part <= WANTED_BYTES
    return [("1% range, bytes sent / bytes of the files", part, f"<= {WANTED_BYTES}", met)]


def small(faults: Faults, rounds: int, _: list[Path]) -> list[Row]:
    """The first batch of many small files: listing and footers behind the latency."""

    def one(number: int) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": range(10 * number, 10 * number + 10)}), sink)
        return bytes(sink.getvalue())

    faults.store.put_all((f"small/{n:05}.parquet", one(n)) for n in range(SMALL_FILES))
    figures: dict[str, Any] = {}

    def first() -> float:
        faults.set(LATENCY)
        start = time.perf_counter()
        loader, _ = open_loader(faults, "small", 256)
        batches = iter(loader)
        if len(next(batches)["id"]) != 256:
            raise SystemExit("the first batch is short")
        took = time.perf_counter() - start
        figures.update(faults.figures())
        del batches
        return took

    # Once is enough to warm nothing: each loader lists and reads the footers anew.
    values = in_turn(max(1, rounds // 2), {"small": first}, warm=False)["small"]
    median = statistics.median(values)
    print(
        f"| first batch of {SMALL_FILES:,} files, far | | {median:.2f} | {spread(values):.0%} "
        f"| {figures['requests']} | {figures['most_at_once']} |"
    )
    what = f"seconds to the first batch of {SMALL_FILES:,} files"
    return [(what, median, f"< {WANTED_SECONDS:g}", median < WANTED_SECONDS)]


PARTS = {"scans": scans, "ranges": ranges, "small": small}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    make(DATA)
    files = sorted((DATA / "lineitem").glob("*.parquet"))
    print(f"{machine()}; {load()} before\n")
    print("| work | million rows/s | seconds | spread | requests | most at once |")
    print("|---|---:|---:|---:|---:|---:|")
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_minio() as store,
        fault_proxy(store, Path(folder) / "log") as faults,
    ):
        # Writing goes past the latency.
        found = [row for part in options.only for row in PARTS[part](faults, options.rounds, files)]
    print(f"\n{load()} after")
    end_with(found)


if __name__ == "__main__":
    main()
