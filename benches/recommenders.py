"""Hashing in SQL beside pandas: texts and integers, in one run, in turns.

    python benches/recommenders.py [--rows 4000000] [--repeats 7]

Each side hashes a column of the same rows in memory, on one thread, to numbers below a modulus. The figure is the
median of the pairwise ratios, and the status is 1 where one misses its target. Only a release build counts. pandas is asked as it comes (`hash_array`, which encodes texts as categories first where
they repeat) and without categories; the faster one counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa

import tensorquery as tq

MODULUS = 1_000_000
TARGETS = {"integers": 2, "texts": 10, "texts that repeat": 10}
"""Times as fast as pandas, at least."""


def seconds(run: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def columns(rows: int) -> dict[str, pa.Array]:
    """Columns as recommenders have them: ids, texts that are all different, and texts that repeat."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**40, rows)
    return {
        "integers": pa.array(ids),
        "texts": pa.array([f"item-{number:x}" for number in ids]),
        "texts that repeat": pa.array([f"shop-{number % 5000}" for number in ids]),
    }


def ours(column: pa.Array) -> Callable[[], object]:
    """A query that hashes a column in memory."""
    session = tq.Session()
    session.register_table("t", pa.table({"x": column}))
    query = session.sql(f"SELECT hash64(x, 0, {MODULUS}) AS y FROM t")

    def run() -> None:
        """Batches are dropped as they come, as a loop drops them."""
        for _ in pa.RecordBatchReader.from_stream(query):
            pass

    return run


def theirs(column: pa.Array) -> list[Callable[[], object]]:
    """The ways of pandas to the same numbers; objects are made before the clock runs."""
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype != object:
        return [lambda: pd.util.hash_array(values) % MODULUS]
    return [
        lambda: pd.util.hash_array(values) % MODULUS,
        lambda: pd.util.hash_array(values, categorize=False) % MODULUS,
    ]


def main() -> int:
    """Measure and print a table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    print("| column | tensorquery, million rows/s | pandas, million rows/s | ratio | target |")
    print("|---|---|---|---|---|")
    missed = False
    for name, column in columns(asked.rows).items():
        own, others = ours(column), theirs(column)
        own()
        pairs = [
            (seconds(own), min(seconds(other) for other in others)) for _ in range(asked.repeats)
        ]
        ratio = statistics.median(other / mine for mine, other in pairs)
        speeds = [asked.rows / statistics.median(side) / 1e6 for side in zip(*pairs, strict=True)]
        target = TARGETS[name]
        missed |= ratio < target
        print(
            f"| {name} | {speeds[0]:.1f} | {speeds[1]:.1f} | {ratio:.1f} | {target} |", flush=True
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
