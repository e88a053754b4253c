"""tensorquery: threads in the training process, or worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import tensorquery as tq
from compare.request import Request


def open_batches(request: Request) -> Iterable[dict[str, Any]]:
    """A loader, which may be iterated again for another epoch."""
    options: dict[str, Any] = {}
    if request.workers:
        options = {"num_workers": request.workers, "persistent_workers": True}
    if request.shuffle_buffer:
        options |= {"shuffle": True, "shuffle_buffer_size": request.shuffle_buffer}
    with warnings.catch_warnings():
        # The rows are sorted, and the buffer smaller than a row group: that is what is measured.
        warnings.simplefilter("ignore", UserWarning)
        loader, _ = tq.create_dataloader(
            path=request.path,
            columns=request.columns,
            filters=request.sql or None,
            batch_size=request.batch_size,
            stack={"x": request.stack} if request.stack else None,
            rank=request.rank,
            world_size=request.world_size,
            **options,
        )
    return loader
