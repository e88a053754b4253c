"""Measures the cost of exact epochs against their targets: ``make bench-epochs``.

Shuffling, a state at every step, and the first batch after a resume. What is compared takes turns in one process;
the figures are medians over the rounds and their spread, (max - min) / median. Ends with the targets met and missed,
and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from compare.machine import load, machine
from compare.report import Row, end_with
from data import make

DATA = Path(".bench")
BATCH_SIZES = (1024, 8192)
HISTORY = 100
"""How often an epoch is resumed."""
COPIES = 10
"""How often the files are linked for the resume: 60 million rows, an epoch of seconds."""


def open_loader(path: Any, batch_size: int, **options: Any) -> tuple[Any, Any]:
    """A loader; the data is sorted, which some of the windows are too small for."""
    import tensorquery as tq

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return tq.create_dataloader(path=path, batch_size=batch_size, **options)


def epoch_seconds(loader: Any) -> tuple[float, int]:
    """Wall time of one epoch, and its rows."""
    start, rows = time.perf_counter(), 0
    for batch in loader:
        rows += len(batch["l_orderkey"])
    return time.perf_counter() - start, rows


def in_turn(
    rounds: int, works: dict[str, Callable[[], float]], warm: bool = True
) -> dict[str, list[float]]:
    """Seconds of each work, by round; a round before them warms caches."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + warm):
        for name, work in works.items():
            took = work()
            if number >= warm:
                seconds[name].append(took)
    return seconds


def spread(values: list[float]) -> float:
    """(max - min) / median."""
    return (max(values) - min(values)) / statistics.median(values)


def throughput(rounds: int) -> list[Row]:
    """Shuffled against unshuffled, and a permutation of all rows once its stage is written."""
    found: list[Row] = []
    modes: dict[str, dict[str, Any]] = {
        "unshuffled": {},
        "shuffle=True": {"shuffle": True},
        'shuffle="global"': {"shuffle": "global"},
    }
    for batch_size in BATCH_SIZES:
        loaders = {
            name: open_loader(DATA / "lineitem", batch_size, **options)[0]
            for name, options in modes.items()
        }
        counts = {name: epoch_seconds(loader)[1] for name, loader in loaders.items()}
        if len(set(counts.values())) != 1:
            raise SystemExit(f"the modes disagree about the number of rows: {counts}")
        rows = counts["unshuffled"]
        works = {
            name: (lambda loader=loader: epoch_seconds(loader)[0])
            for name, loader in loaders.items()
        }
        seconds = in_turn(rounds, works)
        plain = seconds["unshuffled"]
        for name, taken in seconds.items():
            median = statistics.median(taken)
            print(
                f"| {name}, batch {batch_size} | {rows / median / 1e6:.2f} million rows/s | {median:.3f} s | "
                f"{spread(taken):.0%} |",
                flush=True,
            )
            # Round by round: what slows the machine for a while slows both.
            ratio = statistics.median(a / b for a, b in zip(plain, taken, strict=True))
            if name == "shuffle=True":
                what = f"shuffled / unshuffled throughput, batch {batch_size}"
                found.append((what, ratio, ">= 0.8", ratio >= 0.8))
            elif name != "unshuffled":
                what = f"global / unshuffled throughput, batch {batch_size}"
                found.append((what, ratio, "none", True))
    return found


def states(rounds: int, steps: int = 500) -> list[Row]:
    """The time of `state_dict`, alone and in a loop whose step takes a millisecond."""
    found: list[Row] = []
    for mode, options in {"unshuffled": {}, "shuffled": {"shuffle": True}}.items():
        loader, _ = open_loader(DATA / "lineitem", 1024, **options)
        iterator = iter(loader)
        for _ in range(100):
            next(iterator)
        calls = 2000
        best = []
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(calls):
                loader.state_dict()
            best.append((time.perf_counter() - start) / calls)
        micros = statistics.median(best) * 1e6
        print(f"| state_dict, {mode} | | {micros:.2f} µs | {spread(best):.0%} |", flush=True)
        found.append((f"µs per state_dict(), {mode}", micros, "< 10", micros < 10))

        def loop(saves: bool, loader: Any = loader) -> float:
            start = time.perf_counter()
            for number, _ in enumerate(loader):
                until = time.perf_counter() + 1e-3
                while time.perf_counter() < until:
                    pass
                if saves:
                    loader.state_dict()
                if number == steps:
                    break
            return time.perf_counter() - start

        taken = in_turn(rounds, {"without": lambda: loop(False), "with": lambda: loop(True)})
        cost = statistics.median(
            a / b - 1 for a, b in zip(taken["with"], taken["without"], strict=True)
        )
        print(
            f"| {steps} steps of 1 ms, {mode}, with a state each | | {statistics.median(taken['with']):.3f} s | "
            f"{spread(taken['with']):.0%} |",
            flush=True,
        )
        found.append((f"cost of a state at every 1 ms step, {mode}", cost, "< 0.02", cost < 0.02))
    return found


def linked() -> Path:
    """The files of the benchmark, linked often enough that an epoch takes seconds."""
    folder = DATA / "linked"
    folder.mkdir(exist_ok=True)
    for copy in range(COPIES):
        for file in sorted((DATA / "lineitem").glob("*.parquet")):
            link = folder / f"{copy:02}-{file.name}"
            if not link.exists():
                os.link(file, link)
    return folder


def resumes(rounds: int) -> list[Row]:
    """The first batch after a resume at 90% of an epoch, by the time of the epoch."""
    found: list[Row] = []
    path = linked()
    modes = {
        f"{mode}, {ranks}": {**options, **topology}
        for mode, options in {"unshuffled": {}, "shuffled": {"shuffle": True}}.items()
        for ranks, topology in {
            "1 rank": {},
            "rank 0 of 2, filtered and counted": {
                "rank": 0,
                "world_size": 2,
                "filters": "l_linenumber < 8",
            },
        }.items()
    }
    for name, options in modes.items():
        loader, _ = open_loader(path, 8192, **options)
        steps = len(loader)  # counts, where that is not known
        for number, _ in enumerate(loader, 1):
            if number == steps * 9 // 10:
                state = loader.state_dict()

        def whole(options: dict[str, Any] = options) -> float:
            return epoch_seconds(open_loader(path, 8192, **options)[0])[0]

        def resumed(options: dict[str, Any] = options, state: Any = state) -> float:
            loader, _ = open_loader(path, 8192, **options)
            start = time.perf_counter()
            loader.load_state_dict(state)
            next(iter(loader))
            return time.perf_counter() - start

        taken = in_turn(rounds, {"epoch": whole, "resume": resumed}, warm=False)
        epoch, first = (statistics.median(taken[key]) for key in ("epoch", "resume"))
        print(f"| epoch, {name} | | {epoch:.3f} s | {spread(taken['epoch']):.0%} |", flush=True)
        print(
            f"| first batch after a resume, {name} | | {first:.3f} s | {spread(taken['resume']):.0%} |",
            flush=True,
        )
        part = first / epoch
        found.append((f"first batch at 90% / epoch, {name}", part, "< 0.05", part < 0.05))
    return found


def many_splits() -> Path:
    """10,000 splits of 100,000 rows: one file of ten row groups, linked a thousand times."""
    folder = DATA / "splits"
    folder.mkdir(exist_ok=True)
    first = folder / "0000.parquet"
    if not first.exists():
        rows = pa.table(
            {"l_orderkey": np.arange(1_000_000), "x": np.random.default_rng(0).random(1_000_000)}
        )
        pq.write_table(rows, first, row_group_size=100_000)
    for copy in range(1, 1000):
        link = folder / f"{copy:04}.parquet"
        if not link.exists():
            os.link(first, link)
    return folder


def resumed_again(rounds: int) -> list[Row]:
    """The first batch of an epoch that was resumed a hundred times, each time with other batches, by that of the first resume."""
    path, state = many_splits(), None

    def first(number: int, state: Any) -> tuple[float, Any]:
        loader, _ = open_loader(path, 8192 - number % 7, shuffle=True)
        start = time.perf_counter()
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        return time.perf_counter() - start, loader.state_dict()

    for number in range(HISTORY):
        _, state = first(number, state)
    _, once = first(1, None)
    works = {
        "new": lambda: first(0, None)[0],
        "once": lambda: first(2, once)[0],
        "again": lambda: first(HISTORY, state)[0],
    }
    taken = in_turn(rounds, works)
    for name, times in taken.items():
        print(f"| first batch, {name} | | {statistics.median(times):.3f} s | {spread(times):.0%} |")
    letters = len(state["left"]["rows"])
    ratio = statistics.median(taken["again"]) / statistics.median(taken["once"])
    return [
        (f"first batch after {HISTORY} resumes / after one", ratio, "< 1.5", ratio < 1.5),
        (f"KiB of what is left after {HISTORY} resumes", letters / 1024, "< 64", letters < 1 << 16),
    ]


PARTS = {
    "throughput": throughput,
    "states": states,
    "resumes": resumes,
    "resumed_again": resumed_again,
}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    make(DATA)
    print(f"{machine()}; {load()} before\n")
    print("| work | throughput | time | spread |\n|---|---:|---:|---:|")
    found = [row for part in options.only for row in PARTS[part](options.rounds)]
    end_with(found)


if __name__ == "__main__":
    main()
