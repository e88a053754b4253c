"""Ranks read their share of the bytes, and no more. Each rank is a process of its own, with no other beside it."""

from __future__ import annotations

import statistics

import data

from compare.bench import Bench
from compare.stored import file_bytes, warm_file

SHARDS = 8
WORLD_SIZES = (1, 2, 4, 8, 16)


def eight_shards(bench: Bench) -> None:
    """One large file, eight ranks: bytes divided by an eighth of the file, and the slowest rank by the mean."""
    path = data.large()
    ranks = [
        bench.child(
            f"shard {rank} of {SHARDS}",
            bench.request(path, rank=rank, world_size=SHARDS),
            "bytes_read",
            warm=warm_file(),
        )
        for rank in range(SHARDS)
    ]
    most = max(result["bytes"] for results in ranks for result in results)
    bench.target(
        "one large file, 8 shards: most bytes of a shard by an eighth of the file",
        most / (file_bytes(path) / SHARDS),
        at_most=1.1,
    )
    seconds = [statistics.median(result["seconds"] for result in results) for results in ranks]
    bench.target(
        "one large file, 8 shards: seconds of the slowest by the mean",
        max(seconds) / statistics.mean(seconds),
        at_most=1.1,
    )


def many_ranks(bench: Bench) -> None:
    """Bytes of all ranks of a job divided by the bytes of one rank that reads everything."""
    path = data.large()
    totals = {}
    for world_size in WORLD_SIZES:
        totals[world_size] = 0
        for rank in range(world_size):
            request = bench.request(path, rank=rank, world_size=world_size)
            what = f"rank {rank} of {world_size}"
            [found] = bench.child(what, request, "bytes_read", repeats=1, warm=warm_file())
            totals[world_size] += found["bytes"]
        if world_size > 1:
            bench.target(
                f"{world_size} ranks: bytes of all by those of one rank alone",
                totals[world_size] / totals[1],
                at_most=1.05,
            )
