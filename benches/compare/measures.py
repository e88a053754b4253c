"""Measures in a child process, around the loop that a training job would run.

The clock starts before the loader is made and stops after the last batch; imports are outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from compare.request import Request
from compare.sums import add

Open = Callable[[Request], Iterable[Any]]


def nothing(open_batches: Open, request: Request) -> dict[str, Any]:
    """The process as it is after its imports; its memory is what counts."""
    time.sleep(0.5)
    return {}


def epoch(
    open_batches: Open, request: Request, budget: float, check: bool = False
) -> dict[str, Any]:
    """Rows, seconds and the first batch; with `check` also the sum of each column, which takes time itself.

    A loader that takes longer than `budget` after its first batch is broken off: its rows and seconds are those from
    there on, which spares it its start.
    """
    start = time.perf_counter()
    return _read(open_batches(request), start, budget, check)


def second_epoch(open_batches: Open, request: Request, budget: float) -> dict[str, Any]:
    """The second epoch of one loader, as workers that persist have it; the first where that is broken off."""
    loader = open_batches(request)
    first = _read(loader, time.perf_counter(), budget, check=False)
    if not first["complete"]:
        return first
    return _read(loader, time.perf_counter(), budget, check=False)


def _read(batches: Iterable[Any], start: float, budget: float, check: bool) -> dict[str, Any]:
    rows = first_rows = 0
    first = None
    sums: dict[str, float] = {}
    for batch in batches:
        rows += len(next(iter(batch.values())))
        now = time.perf_counter()
        if first is None:
            first, first_rows = now, rows
        elif now - first > budget:
            found = {"rows": rows - first_rows, "seconds": now - first, "complete": False}
            return {**found, "first_batch": first - start}
        if check:
            add(sums, batch)
    found = {"rows": rows, "seconds": time.perf_counter() - start, "complete": True, "sums": sums}
    return {**found, "first_batch": None if first is None else first - start}


def bytes_read(open_batches: Open, request: Request, warm: str) -> dict[str, Any]:
    """Count the bytes that the process reads by system calls, planning included; `warm` is a small file, loaded before.

    The kernel counts them (``rchar``), whoever reads and however, the page cache included; mapped files it does not count.
    """
    for _ in open_batches(request.but(path=warm, columns=None, filters=(), rank=0, world_size=1)):
        pass  # whatever is imported or started with the first loader is read here
    before, start = _rchar(), time.perf_counter()
    rows = sum(len(next(iter(batch.values()))) for batch in open_batches(request))
    seconds = time.perf_counter() - start
    return {"rows": rows, "bytes": _rchar() - before, "seconds": seconds, "complete": True}


def _rchar() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def idle(open_batches: Open, request: Request, step: float, batches: int) -> dict[str, Any]:
    """The part of the time that a consumer which sleeps `step` seconds per batch waits for data, from `iter` on."""
    loader = open_batches(request)
    waited, taken = 0.0, 0
    start = now = time.perf_counter()
    iterator = iter(loader)
    while taken < batches and next(iterator, None) is not None:
        arrived = time.perf_counter()
        waited += arrived - now
        taken += 1
        time.sleep(step)
        now = time.perf_counter()
    return {"part": waited / (now - start), "batches": taken}


def python_bytes(open_batches: Open, request: Request) -> dict[str, Any]:
    """The most bytes that Python's allocators held at once beyond the start while an epoch ran, by row of a batch.

    An object takes 16 bytes at least, so that objects per row, however briefly they live, would show.
    """
    import tracemalloc

    loader = open_batches(request)
    for _ in loader:
        pass  # what is made once per process or loader is none of it
    tracemalloc.start()
    rows = 0
    for batch in loader:
        rows += len(next(iter(batch.values())))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"bytes_per_row": peak / request.batch_size, "rows": rows}
