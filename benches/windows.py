"""Measures windows over series against their targets: ``make bench-windows``.

Series of sensors in one Parquet file, sorted. **plain** are the file's rows through the same loader; **windows** are samples of 96
inputs and 24 targets, 24 rows apart, so that most values are in four or five samples. What is compared are bytes per second: those
that are delivered, and those of the source, the decoded bytes of all columns, counted once an epoch. **every row** are windows one row apart over a part
of the file, beside PyTorch Forecasting's `TimeSeriesDataSet` over the same rows with the same windows and batch size, in samples per
second. What is compared takes turns in one process; the figures are medians over the rounds and their spread, (max - min) / median,
by the wall clock and by the CPU time of all threads. PyTorch Forecasting that is not installed is a line of the table. Ends with the
targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SIZE, STRIDE, HORIZON = 96, 24, 24
BATCH = 256
LENGTH = 50_000
"""Rows of a series."""
PART = (10, 2_000)
"""Series, and rows of each, that PyTorch Forecasting gets: it makes a sample at a time."""
VALUES = ["load", "temperature", "wind", "price"]
ROW_BYTES = 4 + 8 + 4 * len(VALUES)
SAMPLE_BYTES = 4 + 8 + 4 * len(VALUES) * SIZE + 4 * HORIZON

Epoch = Callable[[], int]
"""One epoch; returns the rows or the samples that it delivered."""


def write(path: Path, series: int, length: int) -> None:
    """Series of random walks, one row group for some of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(37)
    rows = series * length
    walks = {
        name: rng.normal(size=rows).astype(np.float32).cumsum(dtype=np.float32) for name in VALUES
    }
    sensors = np.repeat(np.arange(series, dtype=np.int32), length)
    times = np.tile(np.arange(length, dtype=np.int64), series)
    pq.write_table(pa.table({"sensor": sensors, "t": times, **walks}), path)


def plain(path: Path) -> Epoch:
    """The rows as they are."""
    import tensorquery as tq

    loader, _ = tq.create_dataloader(path=path, batch_size=BATCH * STRIDE)
    return lambda: _samples(loader)


def windows(path: Path) -> Epoch:
    """Each value in five samples."""
    return _windows(path, STRIDE)


def shuffled(path: Path) -> Epoch:
    """The same in a shuffled order."""
    return _windows(path, STRIDE, shuffle=True)


def every_row(path: Path) -> Epoch:
    """A window from each row on."""
    return _windows(path, 1)


def _windows(path: Path, stride: int, **options: Any) -> Epoch:
    import tensorquery as tq

    shape = tq.Windows(
        by="sensor", order="t", size=SIZE, stride=stride, horizon=HORIZON, target="load"
    )
    loader, _ = tq.create_dataloader(path=path, windows=shape, batch_size=BATCH, **options)
    return lambda: _samples(loader)


def _samples(batches: Iterable[Any]) -> int:
    return sum(len(batch["t"]) for batch in batches)


def forecasting(path: Path) -> Epoch:
    """PyTorch Forecasting's samples of the same inputs and targets."""
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    rows = TimeSeriesDataSet(
        pd.read_parquet(path).astype({"sensor": str}),
        time_idx="t",
        target="load",
        group_ids=["sensor"],
        min_encoder_length=SIZE,
        max_encoder_length=SIZE,
        min_prediction_length=HORIZON,
        max_prediction_length=HORIZON,
        time_varying_unknown_reals=VALUES,
    )
    loader = rows.to_dataloader(train=False, batch_size=BATCH, num_workers=0)
    return lambda: sum(len(x["encoder_cont"]) for x, _ in loader)


SCAN: dict[str, Callable[[Path], Epoch]] = {
    "plain": plain,
    "windows": windows,
    "shuffled": shuffled,
}
SAMPLES: dict[str, Callable[[Path], Epoch]] = {
    "every row": every_row,
    "pytorch-forecasting": forecasting,
}

Times = dict[str, list[tuple[float, float]]]
"""Seconds of wall clock and of CPU by name, a pair a round."""


def measure(
    works: dict[str, Callable[[Path], Epoch]], path: Path, rounds: int
) -> tuple[Times, dict[str, int]]:
    """Epochs of all of them, in turns."""
    epochs: dict[str, Epoch] = {}
    for name, prepare in works.items():
        try:
            epochs[name] = prepare(path)
        except ImportError as error:
            print(f"| {name} | not installed: {error} | | | |", flush=True)
    times: Times = {name: [] for name in epochs}
    counts: dict[str, int] = {}
    for number in range(rounds + 1):
        # Whoever goes first finds another state of the caches.
        for name in list(epochs)[:: 1 if number % 2 else -1]:
            wall, cpu = time.perf_counter(), time.process_time()
            counts[name] = epochs[name]()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            # The first round warms caches.
            if number:
                times[name].append(spent)
    return times, counts


def told(name: str, what: str, amount: float, times: list[tuple[float, float]], unit: str) -> None:
    """Print the rates of one work."""
    cells = []
    for clock in (0, 1):
        rates = [amount / each[clock] for each in times]
        median = statistics.median(rates)
        cells.append(f"{median:,.1f} {unit} ({(max(rates) - min(rates)) / median:.0%})")
    print(f"| {name} | {what} | {' | '.join(cells)} |", flush=True)


def ratio(times: Times, of: str, to: str, amounts: tuple[float, float], clock: int) -> float:
    """The median ratio of two works' rates, round by round."""
    pairs = zip(times[of], times[to], strict=True)
    return statistics.median(
        (amounts[0] / one[clock]) / (amounts[1] / other[clock]) for one, other in pairs
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (default 7)")
    parser.add_argument(
        "--series", type=int, default=200, help="series of 50,000 rows (default 200)"
    )
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from compare.machine import machine
    from compare.report import end_with
    from data.once import DATA, once

    warnings.simplefilter("ignore")
    DATA.mkdir(exist_ok=True)
    name = f"windows-{options.series}"
    folder = once(
        DATA / name, lambda folder: write(folder / "rows.parquet", options.series, LENGTH)
    )
    part = once(DATA / "windows-part", lambda folder: write(folder / "rows.parquet", *PART))
    print(f"{machine()}, load average {os.getloadavg()[0]:.1f}\n")
    print("| loader | what | by the clock (spread) | by CPU time (spread) |\n|---|---|---:|---:|")
    found = []
    scan, samples = measure(SCAN, folder / "rows.parquet", options.rounds)
    megabytes = options.series * LENGTH * ROW_BYTES / 1e6
    delivered = samples["windows"] * SAMPLE_BYTES / 1e6
    for work in scan:
        told(work, "source", megabytes, scan[work], "MB/s")
        if work != "plain":
            told(work, "delivered", delivered, scan[work], "MB/s")
    for what, amount in (("delivered", delivered), ("of the source", megabytes)):
        for clock, words in enumerate(("clock", "CPU time")):
            each = ratio(scan, "windows", "plain", (amount, megabytes), clock)
            found.append((f"windows / plain, bytes {what}, {words}", each, ">= 0.7", each >= 0.7))
    rows, counts = measure(SAMPLES, part / "rows.parquet", options.rounds)
    for work in rows:
        told(work, "samples", counts[work], rows[work], "/s")
    if "pytorch-forecasting" in rows:
        if len(set(counts.values())) != 1:
            raise SystemExit(f"they deliver different numbers of samples: {counts}")
        amounts = counts["every row"], counts["pytorch-forecasting"]
        each = ratio(rows, "every row", "pytorch-forecasting", amounts, 0)
        found.append(("windows / pytorch-forecasting, samples", each, ">= 10", each >= 10))
    end_with(found)


if __name__ == "__main__":
    main()
