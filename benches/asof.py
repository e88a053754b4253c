"""How long point-in-time joins take: 1,000,000 rows against 100,000, by number of keys; prints the table of docs/point-in-time.md.

Run it as ``python benches/asof.py``. The last form, all pairs with the newest one kept, is what `asof_join` does not write.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tensorquery as tq

LEFT, RIGHT = 1_000_000, 100_000
KEYS = (100, 1_000, 10_000, 100_000)
COLUMNS = [f"f{number}" for number in range(10)]
# All pairs of 100 keys would be a billion rows.
PAIRS_LIMIT = 20_000_000
ALL_PAIRS = f"""
SELECT * EXCEPT (place) FROM (
    SELECT l.*, {", ".join(f"r.{name}" for name in COLUMNS)},
        row_number() OVER (PARTITION BY l.id ORDER BY r.at DESC) AS place
    FROM l LEFT JOIN r ON l.key = r.key AND r.at <= l.at
) WHERE place = 1
"""


def write(folder: Path, keys: int) -> None:
    """Write both sides, at random times."""
    rng = np.random.default_rng(7)
    for name, rows in (("l", LEFT), ("r", RIGHT)):
        columns: dict[str, object] = {
            "key": rng.integers(0, keys, rows),
            "at": rng.integers(0, 10**10, rows).astype("datetime64[us]"),
        }
        names = ("x", "y") if name == "l" else COLUMNS
        columns |= {column: rng.random(rows) for column in names}
        if name == "l":
            columns["id"] = np.arange(rows)
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=100_000)


def seconds(session: tq.Session, sql: str) -> float:
    """The best of three runs, batches thrown away as they come."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        reader = pa.RecordBatchReader.from_stream(session.sql(sql))
        rows = sum(batch.num_rows for batch in reader)
        best = min(best, time.perf_counter() - start)
        assert rows == LEFT
    return best


def main() -> None:
    """Print one line for each number of keys."""
    print(
        f"{LEFT:,} rows against {RIGHT:,}, {len(COLUMNS)} columns taken; seconds, best of three\n"
    )
    print('| rows per key | `method="sort"` | `method="interval"` | all pairs, newest kept |')
    print("|---|---|---|---|")
    for keys in KEYS:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), keys)
            session = tq.Session()
            for name in ("l", "r"):
                session.register_parquet(name, Path(folder) / f"{name}.parquet")
            cells = [
                f"{seconds(session, tq.asof_join('l', 'r', on='at', by='key', columns=COLUMNS, method=method)):.2f}"
                for method in ("sort", "interval")
            ]
            pairs = LEFT * RIGHT // keys // 2
            cells.append(
                f"{seconds(session, ALL_PAIRS):.2f}" if pairs < PAIRS_LIMIT else "not tried"
            )
        print(f"| {RIGHT // keys:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
