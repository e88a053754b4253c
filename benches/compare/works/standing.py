"""Costs of a loader beside its rate: the first batch, workers, memory, and needless waiting."""

from __future__ import annotations

import statistics
from pathlib import Path

import data

from compare.bench import Bench
from compare.loaders import LOADERS, OURS, PEERS
from compare.turns import run_child

MIB = 1 << 20
LIMIT = 512 * MIB
"""`memory_limit` of the sort, a third of its rows."""

WORKING_PEERS = tuple(name for name in PEERS if "workers" in LOADERS[name].can)


def time_to_first_batch(bench: Bench) -> None:
    """From the call of ``create_dataloader`` to the first batch, in a process that has just imported it."""
    paths = {"1 file": (data.single(), 0.030), "1,000 files": (data.many(1_000), 0.300)}
    for what, (path, wanted) in paths.items():
        results = bench.child(
            f"first batch, {what}", bench.request(path, 1024), "epoch", budget=bench.budget
        )
        bench.target(
            f"first batch, {what}: seconds",
            statistics.median(result["first_batch"] for result in results),
            at_most=wanted,
        )


def two_workers(bench: Bench) -> None:
    """The second epoch with two worker processes that persist, against threads and peers with two workers."""
    for batch_size in (1024, 8192):
        threads = bench.request(data.make(), batch_size)
        workers = threads.but(workers=2)
        whole = bench.compare("second epoch, threads", threads, [OURS], "second_epoch")[OURS]
        runs = bench.compare(
            "second epoch, 2 workers", workers, [OURS, *WORKING_PEERS], "second_epoch"
        )
        ours = runs[OURS]
        part = f"2 workers, batch {batch_size}"
        figure = ours.by(whole) if ours.results and whole.results else None
        bench.target(f"{part}: of the rate of threads", figure, at_least=0.5)
        bench.fastest(part, runs, WORKING_PEERS, at_least=10.0)


def peak_memory(bench: Bench) -> None:
    """The peak of a full scan beyond a process that has imported torch, whatever the size of the file."""
    paths = {
        "row groups of 8 MiB, 6 million rows": data.make(),
        "row groups of 8 MiB, 24 million rows": data.large(),
        "row groups of 64 MiB": data.grouped(),
    }
    for what, path in paths.items():
        figure = _beyond_torch(bench, what, path)
        bench.target(f"peak memory, {what}: MiB beyond torch", figure, at_most=350)
    what = "row groups of 256 MiB"
    figure = _beyond_torch(bench, what, data.beyond())
    # In flight is one more than there are threads.
    part = None if figure is None else figure / (256 * (bench.cores + 1))
    bench.target(f"peak memory, {what}: beyond torch, by those in flight", part, at_most=1.0)
    # 1.5 GiB of rows. The stage is a mapped file, which is no memory that a limit could be about.
    request = bench.request(data.large())
    _, peak = run_child(OURS, "sorting", request, sample=True, memory_limit=LIMIT, budget=0.0)
    bench.target(
        "peak memory of a sort, by memory_limit: anonymous, beyond torch",
        (peak.anonymous - bench.bare.anonymous) / LIMIT,
        at_most=1.1,
    )


def _beyond_torch(bench: Bench, what: str, path: Path) -> float | None:
    """The peak of a full scan in MiB, less what a process has that only imports torch."""
    peak = bench.compare(f"memory, {what}", bench.request(path), [OURS])[OURS].peak
    return None if peak is None else (peak.total - bench.bare.total) / MIB


def idle_cost(bench: Bench) -> None:
    """A consumer that sleeps 5 ms per batch: the part of its time that it waits, from ``iter`` on."""
    batches = 400 if bench.repeats == 1 else 1_000
    results = bench.child(
        "idle", bench.request(data.make(), 1024), "idle", step=0.005, batches=batches
    )
    bench.target(
        "idle: part of the time that a consumer of 5 ms steps waits",
        statistics.median(result["part"] for result in results),
        at_most=0.01,
    )
