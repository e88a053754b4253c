"""How fast a query loads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tensorquery.cli.arguments import Arguments
from tensorquery.sql.query import Query

__all__ = ["bench"]

_BATCH_SIZE = 1024


def bench(query: Query, asked: Arguments) -> Iterator[dict[str, Any]]:
    """Load some epochs as rank 0 does, with a training loop that does nothing.

    Args:
        query: The query to load.
        asked: Options of the loader, and the number of epochs.

    Yields:
        For each epoch: its number, rows, batches, seconds, rows per second, seconds until the first batch (None without
        one), and the share of the time in which the loop waited for a batch.

    Raises:
        ImportError: The library of the output format is not installed.
        UnsupportedTypeError: A column has no tensor.
        DataError: A file cannot be read, or a column has nulls.
    """
    # The other commands need neither a loader nor torch, which takes a second to import.
    from tensorquery.loading.create import create_dataloader

    started = time.perf_counter()
    loader, dataset = create_dataloader(
        query,
        batch_size=asked.batch_size or _BATCH_SIZE,
        num_workers=asked.num_workers,
        shuffle=asked.shuffle,
        output_format=asked.output_format,
        rank=0,
        world_size=asked.world_size,
    )
    for epoch in range(asked.epochs):
        # The first epoch has to plan.
        begun = started if epoch == 0 else time.perf_counter()
        batches = 0
        waited = 0.0
        first = None
        asking = time.perf_counter()
        for _ in loader:
            got = time.perf_counter()
            waited += got - asking
            first = got - begun if first is None else first
            batches += 1
            asking = time.perf_counter()
        seconds = time.perf_counter() - begun
        # Each type of batch gives its number of rows in another way.
        rows = int(dataset.metrics()["rows"])
        yield {
            "epoch": epoch,
            "rows": rows,
            "batches": batches,
            "seconds": seconds,
            "rows_per_second": rows / seconds,
            "first_batch_seconds": first,
            "wait_share": waited / seconds,
        }
