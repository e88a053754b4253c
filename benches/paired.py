"""Two builds of the package against each other, in turns: ``make bench-paired AGAINST=commit``.

Each run of a work is a process of its own, which imports the package from the folder of its build and prints seconds of wall clock
and of all CPUs. The table gives medians, and the median of the ratios of runs that follow each other, with the quarter of them that
lies lowest and highest: what slows the machine for a while slows both. Plans are timed of the new build alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BATCH = 8192
STAR = 20
"""Tables joined to the one in the middle of the star."""


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, nargs="?", help="a folder that holds tensorquery/")
    parser.add_argument("new", type=Path, nargs="?", help="the folder of the other build")
    parser.add_argument("--rounds", type=int, default=11, help="pairs of runs (default 11)")
    parser.add_argument("--only", choices=WORKS | PLANS, nargs="+", default=[*WORKS, *PLANS])
    parser.add_argument("--work", choices=WORKS | PLANS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(1, str(HERE))
    if options.work:
        print(json.dumps((WORKS | PLANS)[options.work]()))
        return
    from compare.machine import machine

    print(f"{machine()}, load average {os.getloadavg()[0]:.1f}, {options.rounds} pairs\n")
    works, plans = ([work for work in options.only if work in kind] for kind in (WORKS, PLANS))
    if works:
        print("| work | old | new | new / old, wall | new / old, CPU |\n|---|---:|---:|---:|---:|")
    for work in works:
        run(options.new, work)
        pairs = []
        for number in range(options.rounds):
            # Whoever goes first finds another state of the caches.
            order = (options.old, options.new) if number % 2 else (options.new, options.old)
            times = {folder: run(folder, work) for folder in order}
            pairs.append((times[options.old], times[options.new]))
        old, new = (statistics.median(pair[which][0] for pair in pairs) for which in (0, 1))
        wall, cpu = ([new[which] / old[which] for old, new in pairs] for which in (0, 1))
        print(f"| {work} | {old:.3f} s | {new:.3f} s | {told(wall)} | {told(cpu)} |", flush=True)
    if plans:
        print("\n| plan | seconds | lowest to highest |\n|---|---:|---:|")
    for work in plans:
        run(options.new, work)
        walls = [run(options.new, work)[0] for _ in range(options.rounds)]
        told_all = f"{min(walls):.2f} to {max(walls):.2f}"
        print(f"| {work} | {statistics.median(walls):.2f} | {told_all} |", flush=True)


def told(ratios: list[float]) -> str:
    """The median, and the quarters."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def run(folder: Path, work: str) -> tuple[float, float]:
    """Seconds of wall clock and of CPU of one work by the build of this folder."""
    done = subprocess.run(
        [sys.executable, __file__, "--work", work],
        env={**os.environ, "PYTHONPATH": str(folder.resolve())},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    wall, cpu = json.loads(done.stdout)
    return wall, cpu


def timed(what: Callable[[], Any]) -> tuple[float, float]:
    """How long this takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    what()
    return time.perf_counter() - wall, time.process_time() - cpu


def epoch_of(query: str | Path, **options: Any) -> tuple[float, float]:
    """An epoch after one that fills the caches of the system and of the loader."""
    import tensorquery as tq

    kind = {"path": query} if isinstance(query, Path) else {"query": query}
    loader, _ = tq.create_dataloader(**kind, batch_size=BATCH, **options)

    def epoch() -> int:
        return sum(1 for _ in loader)

    epoch()
    return timed(epoch)


def full_scan() -> tuple[float, float]:
    """Eight columns of six million rows."""
    import data

    return epoch_of(data.make(), columns=data.COLUMNS)


def wide() -> tuple[float, float]:
    """Every column of a wide table."""
    import data

    return epoch_of(data.wide("equal"))


def filtered(column: str, bounds: tuple[int, int]) -> tuple[float, float]:
    """One percent of the rows."""
    import data

    low, high = bounds
    return epoch_of(
        data.make(), columns=data.COLUMNS, filters=[(column, ">=", low), (column, "<", high)]
    )


def sorted_filter() -> tuple[float, float]:
    """A range of the key that the files are sorted by."""
    import data

    return filtered("l_orderkey", data.key_range())


def scattered_filter() -> tuple[float, float]:
    """Rows scattered over all row groups."""
    import data

    return filtered("l_partkey", data.scattered_range())


def computed() -> tuple[float, float]:
    """Sums and products of integers, which are checked for overflow."""
    import data

    sql = (
        "SELECT l_orderkey + l_partkey AS a, l_suppkey * 3 - l_linenumber AS b "
        f"FROM '{data.make()}/*.parquet'"
    )
    return epoch_of(sql)


def star() -> tuple[float, float]:
    """A star of joins."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import tensorquery as tq

    with tempfile.TemporaryDirectory() as folder:
        session, fact = tq.Session(), {"v": list(range(40))}
        tables = range(STAR)
        for number in tables:
            path = Path(folder, f"dim{number}.parquet")
            columns = {f"k{number}": list(range(10)), f"w{number}": [str(n) for n in range(10)]}
            pq.write_table(pa.table(columns), path)
            session.register_parquet(f"dim{number}", path)
            fact[f"f{number}"] = [row % 10 for row in range(40)]
        pq.write_table(pa.table(fact), Path(folder, "fact.parquet"))
        session.register_parquet("fact", Path(folder, "fact.parquet"))
        columns = ", ".join(f"w{number}" for number in tables)
        joins = " ".join(f"JOIN dim{number} ON f{number} = k{number}" for number in tables)
        sql = f"SELECT v, {columns} FROM fact {joins}"
        return timed(lambda: tq.create_dataloader(sql, session=session, batch_size=8))


def columns_of(number: int) -> tuple[float, float]:
    """``SELECT *`` over so many columns."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import tensorquery as tq

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wide.parquet")
        values = np.zeros(10, dtype=np.float32)
        pq.write_table(pa.table({f"c{column}": values for column in range(number)}), path)
        session = tq.Session()
        session.register_parquet("wide", path)
        # The first loader of a process imports torch.
        tq.create_dataloader("SELECT c0 FROM wide", session=session, batch_size=8)
        sql = "SELECT * FROM wide"
        return timed(lambda: tq.create_dataloader(sql, session=session, batch_size=8))


WORKS: dict[str, Callable[[], tuple[float, float]]] = {
    "full scan": full_scan,
    "wide": wide,
    "1% range of the sorted key": sorted_filter,
    "1% scattered": scattered_filter,
    "integers computed": computed,
}

PLANS: dict[str, Callable[[], tuple[float, float]]] = {
    f"star of {STAR} joins": star,
    "SELECT * of 10,000 columns": lambda: columns_of(10_000),
    "SELECT * of 50,000 columns": lambda: columns_of(50_000),
}

if __name__ == "__main__":
    main()
