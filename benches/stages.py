"""Measures staged queries against DuckDB and DataFusion: ``make bench-stages``.

Eight Parquet files of 6 million rows: a key of 200,000 values, a group of 1,000, a time in no order, two numbers; and a table of the
keys. Five queries, each of which must see all rows before it gives one: **window**, **sort**, **distinct**, **group** and **join** (with groups
above, since a join alone runs split by split). Each engine's clock starts before the query is planned and stops when its last row
is a tensor or an Arrow batch: ours writes the stage and reads an epoch of batches of 8,192 rows, which DuckDB and DataFusion hand out as
Arrow batches. What is compared takes turns in one process with as many threads; figures are medians over the rounds and their spread, (max -
min) / median, by the wall clock and by the CPU time of all threads. All engines must give as many rows and equal sums. An engine that
is not installed is a line of the table. Ends with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
BATCH = 8192
FILES, ROWS = 8, 6_000_000
KEYS, GROUPS = 200_000, 1_000

QUERIES = {
    "window": "SELECT k, t, x, sum(x) OVER (PARTITION BY k ORDER BY t) AS s FROM events",
    "sort": "SELECT k, g, t, x, y FROM events ORDER BY t",
    "distinct": "SELECT DISTINCT k, g FROM events",
    "group": "SELECT g, count(*) AS n, sum(x) AS s, max(y) AS m FROM events GROUP BY g",
    "join": "SELECT e.k, sum(e.x * u.w) AS s FROM events AS e JOIN keys AS u ON e.k = u.k GROUP BY e.k",
}

Run = Callable[[str], tuple[int, float]]
"""Runs a query; returns its rows and the sum of its last column."""


def write(folder: Path) -> None:
    """The files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(38)
    times = rng.permutation(ROWS)
    (folder / "events").mkdir()
    for number in range(FILES):
        rows = ROWS // FILES
        part = {
            "k": rng.integers(0, KEYS, rows),
            "g": rng.integers(0, GROUPS, rows).astype(np.int32),
            "t": times[number * rows : (number + 1) * rows],
            # Whole numbers, whose sums are exact in any order.
            "x": rng.integers(-100, 100, rows).astype(np.float64),
            "y": rng.integers(-100, 100, rows).astype(np.float64),
        }
        pq.write_table(
            pa.table(part), folder / "events" / f"{number}.parquet", row_group_size=131_072
        )
    keys = pa.table({"k": rng.permutation(KEYS), "w": rng.integers(0, 9, KEYS).astype(np.float64)})
    pq.write_table(keys, folder / "keys.parquet")


def tensorquery(folder: Path, _: int) -> Run:
    """A loader over a stage that is built anew."""
    import tensorquery as tq

    session = tq.Session()
    session.register_parquet("events", folder / "events")
    session.register_parquet("keys", folder / "keys.parquet")
    numbers = itertools.count()
    stages = Path(tempfile.mkdtemp(dir=folder))

    def run(sql: str) -> tuple[int, float]:
        place = stages / str(next(numbers))
        loader, dataset = tq.create_dataloader(
            sql, session=session, stage_dir=place, batch_size=BATCH
        )
        rows, total = 0, 0.0
        for batch in loader:
            last = list(batch.values())[-1]
            rows += len(last)
            total += float(last.sum())
        del loader, dataset
        shutil.rmtree(place)
        return rows, total

    return run


def duckdb(folder: Path, threads: int) -> Run:
    """DuckDB with its defaults, but for the order of rows, which it need not keep."""
    import duckdb

    duck = duckdb.connect(config={"threads": threads, "preserve_insertion_order": False})
    duck.execute(f"CREATE VIEW events AS FROM '{folder}/events/*.parquet'")
    duck.execute(f"CREATE VIEW keys AS FROM '{folder}/keys.parquet'")
    return lambda sql: _summed(iter(duck.execute(sql).to_arrow_reader(BATCH)))


def datafusion(folder: Path, threads: int) -> Run:
    """DataFusion with its defaults."""
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(threads))
    context.register_parquet("events", str(folder / "events"))
    context.register_parquet("keys", str(folder / "keys.parquet"))
    return lambda sql: _summed(batch.to_pyarrow() for batch in context.sql(sql).execute_stream())


def _summed(batches: Iterator[Any]) -> tuple[int, float]:
    rows, total = 0, 0.0
    for batch in batches:
        rows += batch.num_rows
        total += float(batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False).sum())
    return rows, total


ENGINES: dict[str, Callable[[Path, int], Run]] = {
    "tensorquery": tensorquery,
    "DuckDB": duckdb,
    "DataFusion": datafusion,
}

Times = dict[str, list[tuple[float, float]]]
"""Seconds of wall clock and of CPU by engine, a pair a round."""


def measure(sql: str, engines: dict[str, Run], rounds: int) -> Times:
    """Runs of one query, in turns."""
    times: Times = {name: [] for name in engines}
    for number in range(rounds + 1):
        answers = {}
        # Whoever goes first finds another state of the caches.
        for name in list(engines)[:: 1 if number % 2 else -1]:
            wall, cpu = time.perf_counter(), time.process_time()
            answers[name] = engines[name](sql)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            # The first round warms caches.
            if number:
                times[name].append(spent)
        if len(set(answers.values())) != 1:
            raise SystemExit(f"{sql}: the answers differ: {answers}")
    return times


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=list(QUERIES))
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from compare.machine import machine
    from compare.report import end_with
    from data.once import DATA, once

    warnings.simplefilter("ignore")
    DATA.mkdir(exist_ok=True)
    folder = once(DATA / "stages", write)
    threads = len(os.sched_getaffinity(0))
    engines: dict[str, Run] = {}
    print(f"{machine()}, load average {os.getloadavg()[0]:.1f}\n")
    print("| query | engine | seconds (spread) | CPU seconds (spread) |\n|---|---|---:|---:|")
    for name, prepare in ENGINES.items():
        try:
            engines[name] = prepare(folder, threads)
        except ImportError as error:
            print(f"| | {name} is not installed: {error} | | |", flush=True)
    found = []
    for work in options.only:
        times = measure(QUERIES[work], engines, options.rounds)
        medians = {}
        for name, spent in times.items():
            cells = []
            for each in zip(*spent, strict=True):
                medians.setdefault(name, statistics.median(each))
                spread = (max(each) - min(each)) / statistics.median(each)
                cells.append(f"{statistics.median(each):.3f} ({spread:.0%})")
            print(f"| {work} | {name} | {' | '.join(cells)} |", flush=True)
        others = [name for name in medians if name != "tensorquery"]
        if not others:
            raise SystemExit("no engine to compare with is installed")
        best = min(others, key=medians.__getitem__)
        pairs = zip(times[best], times["tensorquery"], strict=True)
        speed = statistics.median(other[0] / own[0] for other, own in pairs)
        found.append((f"{work}, times {best}'s speed", speed, ">= 1", speed >= 1))
    end_with(found)


if __name__ == "__main__":
    main()
