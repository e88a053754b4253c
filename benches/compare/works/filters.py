"""1% of the rows: a range of the sorted key, and rows scattered over everything."""

from __future__ import annotations

from pathlib import Path

import data

from compare.bench import Bench
from compare.loaders import ENGINES, OURS
from compare.request import Condition
from compare.stored import file_bytes, touched_bytes, warm_file

PEERS = ("torch-dataloader-utils", *ENGINES)


def between(column: str, low: int, high: int) -> tuple[Condition, ...]:
    return (column, ">=", low), (column, "<=", high)


def one_percent_range(bench: Bench) -> None:
    """Time against the fastest peer; bytes with small pages, and without a page index."""
    low, high = data.key_range()
    filters = between("l_orderkey", low, high)
    layouts = {"large pages": (data.make(), (1024, 8192)), "small pages": (data.paged(), (8192,))}
    for layout, (path, batch_sizes) in layouts.items():
        for batch_size in batch_sizes:
            request = bench.request(path, batch_size, filters=filters)
            what = f"1% range, {layout}"
            runs = bench.compare(what, request, [OURS, *PEERS])
            bench.fastest(f"{what}, batch {batch_size}", runs, PEERS, at_least=1.0)

    def read(path: Path, filters: tuple[Condition, ...]) -> int:
        request = bench.request(path, filters=filters)
        what = f"bytes of {path.name} where {request.sql}"
        [found] = bench.child(what, request, "bytes_read", repeats=1, warm=warm_file())
        return int(found["bytes"])

    bench.target(
        "1% range, page index: bytes read by the bytes of the files",
        read(data.paged(), filters) / file_bytes(data.paged()),
        at_most=0.02,
    )
    bare = data.bare()
    # Of keys that no row group has, only the footers are read, and what a reader takes before them since it guesses their length.
    footers = read(bare, (("l_orderkey", "<", 0),))
    bench.target(
        "1% range, no page index: bytes read, without footers, by the bytes of the touched row groups",
        (read(bare, filters) - footers) / touched_bytes(bare, "l_orderkey", low, high),
        at_most=1.01,
    )


def one_percent_scattered(bench: Bench) -> None:
    """Late materialisation: the other columns are decoded for the rows that stay."""
    filters = between("l_partkey", *data.scattered_range())
    for batch_size in (1024, 8192):
        everything = bench.request(data.make(), batch_size)
        scattered = everything.but(filters=filters)
        part = f"1% scattered, batch {batch_size}"
        whole = bench.compare("all rows", everything, [OURS])[OURS]
        runs = bench.compare("1% scattered", scattered, [OURS, *PEERS])
        ours = runs[OURS]
        figure = ours.seconds / whole.seconds if ours.results and whole.results else None
        bench.target(f"{part}: seconds by those of all rows", figure, at_most=0.5)
        bench.fastest(part, runs, ENGINES, at_least=3.5)
