"""Everything is read: rows per second against the decode limit and the fastest peer."""

from __future__ import annotations

import data

from compare.bench import Bench
from compare.limit import LIMIT
from compare.loaders import OURS, PEERS
from compare.stored import chunk_bytes, footer_bytes, warm_file

SCAN_TARGETS = {8192: (0.75, 0.85), 1024: (0.6, 0.7)}
"""Of the decode limit, and what is hoped for, by batch size."""

STACKING_PEERS = ("torch-dataloader-utils", "datasets", "pyarrow", "DuckDB", "polars")
NEAR_COLUMNS = ("f20", "f24")
"""Two columns whose chunks lie 192 KiB apart: within what object stores merge into one range by default."""


def full_scan(bench: Bench) -> None:
    """Eight numeric columns, snappy and zstd; peers on zstd at the batch size that suits them better."""
    for codec, path in {"snappy": data.make(), "zstd": data.zstd()}.items():
        what = f"full scan, {codec}"
        for batch_size, (wanted, aim) in SCAN_TARGETS.items():
            peers = PEERS
            if codec == "zstd":
                # Tables that are converted from Parquet are the same for either codec.
                peers = tuple(name for name in PEERS if not name.lower().startswith("lance"))
                peers = peers if batch_size == max(SCAN_TARGETS) else ()
            request = bench.request(path, batch_size)
            runs = bench.compare(what, request, [OURS, LIMIT, *peers])
            part = f"{what}, batch {batch_size}"
            bench.ratio(f"{part}: of the decode limit", runs, LIMIT, at_least=wanted, aim=aim)
            if peers:
                bench.fastest(part, runs, peers, at_least=3.5)


def wide_table(bench: Bench) -> None:
    """64 columns of float32 become one (N, 64) tensor."""
    for layout in ("equal", "unequal"):
        what = f"wide table, {layout} files"
        request = bench.request(data.wide(layout), stack=tuple(data.FEATURES))
        peers = STACKING_PEERS if layout == "equal" else ()
        runs = bench.compare(what, request, [OURS, LIMIT, *peers])
        bench.ratio(f"{what}: of the decode limit", runs, LIMIT, at_least=0.8)
        if peers:
            bench.fastest(what, runs, peers, at_least=5.0)


def two_columns(bench: Bench) -> None:
    """2 of 66 columns: bytes and rows per second."""
    path = data.wide("equal")
    request = bench.request(path, columns=NEAR_COLUMNS)
    [read] = bench.child(
        "bytes of 2 of 66 columns", request, "bytes_read", repeats=1, warm=warm_file()
    )
    bench.target(
        "2 of 66 columns: bytes read, without footers, by the bytes of their chunks",
        (read["bytes"] - footer_bytes(path)) / chunk_bytes(path, NEAR_COLUMNS),
        at_most=1.1,
    )
    runs = bench.compare("2 of 66 columns", request, [OURS, LIMIT, *PEERS])
    bench.fastest("2 of 66 columns", runs, PEERS, at_least=3.0)


def embeddings(bench: Bench) -> None:
    """Vectors of 256 float32, without the text beside them."""
    request = bench.request(data.embeddings(), columns=("embedding",))
    peers = ("datasets", "pyarrow", "lance")
    runs = bench.compare("embeddings", request, [OURS, LIMIT, *peers])
    bench.ratio("embeddings: of the decode limit", runs, LIMIT, at_least=0.8)
    # Memory per batch, for any number of rows, counts little in a large batch; an object for each row would be 16 bytes.
    found = bench.child("Python's memory", request.but(batch_size=32_768), "python_bytes", 1)
    bench.target(
        "embeddings: bytes of Python objects per row",
        max(result["bytes_per_row"] for result in found),
        at_most=1.0,
    )
