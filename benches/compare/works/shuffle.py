"""Rows mixed in a buffer of 50,000, against the same loader in order and the peers that mix rows."""

from __future__ import annotations

import data

from compare.bench import Bench
from compare.loaders import LOADERS, OURS, PEERS

BUFFER = 50_000
MIXING_PEERS = tuple(name for name in PEERS if "shuffle" in LOADERS[name].can)


def record_shuffle(bench: Bench) -> None:
    """At both batch sizes; peers at the smaller one, since mixing rows one by one does not mind the batch."""
    for batch_size in (1024, 8192):
        plain = bench.request(data.make(), batch_size)
        mixed = plain.but(shuffle_buffer=BUFFER)
        whole = bench.compare("in order", plain, [OURS])[OURS]
        runs = bench.compare(
            "record shuffle", mixed, [OURS, *(MIXING_PEERS if batch_size == 1024 else ())]
        )
        ours = runs[OURS]
        part = f"record shuffle, batch {batch_size}"
        figure = ours.by(whole) if ours.results and whole.results else None
        bench.target(f"{part}: of the rate in order", figure, at_least=0.8)
        if batch_size == 1024:
            bench.fastest(part, runs, MIXING_PEERS, at_least=50.0)
