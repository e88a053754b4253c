"""Makes the tables of ``make bench-staging``: two that are joined by key, together so many GiB of Arrow data, as Parquet files.

`items` has each key once, in an order that looks random, and the number of its group, of which there are a third as many;
`events` has 1.25 rows per key. Both have ten more columns, all int64, so that sums are exact. Takes some minutes once, and little
memory: keys come from a multiplication modulo their number, chunk by chunk.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = 10
"""Columns of numbers, besides the keys of a table."""

ITEM_BYTES, EVENT_BYTES = 8 * (2 + COLUMNS), 8 * (1 + COLUMNS)
EVENTS_PER_ITEM = 1.25
KEYS_PER_GROUP = 3
CHUNK = 1 << 19
"""Rows of a row group, and of what is held at a time."""

FILE_CHUNKS = 16


def make_staging(folder: Path, gib: float) -> dict[str, int]:
    """Write the tables below `folder` unless they are there; say what is in them."""
    summary = folder / "complete.json"
    if summary.exists():
        return dict(json.loads(summary.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    keys = int(gib * 2**30 / (ITEM_BYTES + EVENTS_PER_ITEM * EVENT_BYTES))
    events = int(keys * EVENTS_PER_ITEM)
    groups = keys // KEYS_PER_GROUP
    # Seven times a key gives every group only where seven does not divide their number.
    groups -= groups % 7 == 0
    found = {"keys": keys, "events": events, "groups": groups, "total": 0, "stored": 0}
    found["bytes"] = keys * ITEM_BYTES + events * EVENT_BYTES
    scatter = _coprime(keys)
    for table, rows in (("items", keys), ("events", events)):
        (partial / table).mkdir(parents=True)
        for number, chunks in enumerate(_files(rows)):
            path = partial / table / f"part-{number:03}.parquet"
            with pq.ParquetWriter(
                path, _schema(table), compression="snappy", use_dictionary=False
            ) as writer:
                for start, stop in chunks:
                    at = np.arange(start, stop, dtype=np.int64)
                    # A permutation of the keys; events begin a second one when the first is over.
                    key = (at % keys) * scatter % keys
                    dice = np.random.default_rng([start, table == "items"])
                    values = dice.integers(0, 1000, (COLUMNS, stop - start), dtype=np.int64)
                    first = [key, key * 7 % groups] if table == "items" else [key]
                    arrays = [pa.array(column) for column in (*first, *values)]
                    writer.write_batch(pa.record_batch(arrays, schema=_schema(table)))
                    # An item's numbers count once for each of its events: the first quarter of keys has two.
                    often = 1 + (at < events - keys) if table == "items" else 1
                    found["total"] += int((values.sum(axis=0) * often).sum())
            found["stored"] += path.stat().st_size
    (partial / "complete.json").write_text(json.dumps(found))
    partial.rename(folder)
    return found


def _files(rows: int) -> Iterator[list[tuple[int, int]]]:
    """Where the chunks of each file begin and end."""
    chunks = [(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]
    for first in range(0, len(chunks), FILE_CHUNKS):
        yield chunks[first : first + FILE_CHUNKS]


def _schema(table: str) -> pa.Schema:
    keys = ["key", "member"] if table == "items" else ["key"]
    names = [*keys, *(f"{table[0]}{number}" for number in range(COLUMNS))]
    return pa.schema([pa.field(name, pa.int64(), nullable=False) for name in names])


def _coprime(count: int) -> int:
    """A factor near the golden section of `count`, by which all remainders are reached."""
    # Products stay below 2^63.
    factor = min(int(count * 0.6180339887), 2**62 // count)
    while math.gcd(factor, count) != 1:
        factor -= 1
    return factor
