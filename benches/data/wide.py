"""A wide table: an int32, 64 features of float32 and an int32 label, two million rows in many small row groups."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.once import DATA, once

ROWS = 2_000_000
ROW_GROUP = 1 << 14
"""Rows of a group: 64 KiB per column, so that projected columns lie closer together than stores merge ranges."""

FEATURES = [f"f{number}" for number in range(64)]
LAYOUTS = {"equal": [1] * 8, "unequal": [1, 2, 4, 8, 16, 32]}
"""Relative sizes of the files; the unequal ones differ by a factor of 32."""


def wide(layout: str) -> Path:
    """The table as equal or 32 times unequal files."""

    def write(target: Path) -> None:
        dice = np.random.default_rng(seed=66)
        parts = LAYOUTS[layout]
        borders = [ROWS * sum(parts[:number]) // sum(parts) for number in range(len(parts) + 1)]
        for number, (first, end) in enumerate(itertools.pairwise(borders)):
            # Random mantissas repeat no value: a dictionary would only add to the bytes.
            pq.write_table(
                _rows(dice, first, end),
                target / f"part-{number}.parquet",
                row_group_size=ROW_GROUP,
                use_dictionary=False,
            )

    return once(DATA / f"wide-{layout}", write)


def _rows(dice: np.random.Generator, first: int, end: int) -> pa.Table:
    count = end - first
    columns = {"id": np.arange(first, end, dtype=np.int32)}
    columns |= {name: dice.standard_normal(count, dtype=np.float32) for name in FEATURES}
    columns["label"] = dice.integers(0, 10, count, dtype=np.int32)
    return pa.table(columns)
