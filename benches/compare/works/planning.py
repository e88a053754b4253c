"""Planning: many files, and many splits."""

from __future__ import annotations

import statistics

import data

from compare.bench import Bench

FILES, SPLITS, RANKS = 10_000, 1_000_000, 8


def many_files(bench: Bench) -> None:
    """A new session lists, pins and plans 10,000 files; a million splits are dealt to 8 ranks."""
    request = bench.request(data.many(FILES))
    results = bench.child("10,000 files", request, "planning", files=FILES, ranks=RANKS)
    bench.target(
        "10,000 files: seconds to plan",
        statistics.median(result["seconds"] for result in results),
        at_most=1.5,
    )
    results = bench.child("1,000,000 splits", request, "dealing", splits=SPLITS, ranks=RANKS)
    bench.target(
        "LPT of 1,000,000 splits over 8 ranks: seconds",
        statistics.median(result["seconds"] for result in results),
        at_most=1.0,
    )
