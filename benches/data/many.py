"""Many small files: the cost of planning and of the first batch for a badly laid out table."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from data.lineitem import single
from data.once import DATA, once

ROWS = 100
"""Rows of each file."""


def many(files: int) -> Path:
    """The first rows of lineitem, a hundred to a file; more files than the first of lineitem holds repeat them."""

    def write(target: Path) -> None:
        table = pq.read_table(single())
        places = table.num_rows // ROWS
        for number in range(files):
            rows = table.slice(number % places * ROWS, ROWS)
            pq.write_table(rows, target / f"part-{number:05}.parquet")

    return once(DATA / f"files-{files}", write)
