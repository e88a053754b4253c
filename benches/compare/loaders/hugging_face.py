"""Hugging Face `datasets`: streaming Parquet, formatted as Arrow, which it slices into batches without Python rows.

Its torch format goes by way of NumPy and looks at each value; it is more than ten times slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset, load_dataset
from datasets.utils.logging import set_verbosity_error

from compare.loaders.tensors import tensors
from compare.request import Request


def prepare(request: Request) -> None:
    set_verbosity_error()


def open_batches(request: Request) -> Iterable[dict[str, Any]]:
    rows = load_dataset(
        "parquet",
        data_files=sorted(str(file) for file in Path().glob(request.files)),
        split="train",
        streaming=True,
        columns=None if request.columns is None else list(request.columns),
        filters=list(request.filters) or None,
    )
    if request.shuffle_buffer:
        rows = rows.shuffle(seed=42, buffer_size=request.shuffle_buffer)
    rows = rows.with_format("arrow")
    if not request.workers:
        return _batches(rows, request)
    return torch.utils.data.DataLoader(
        _Worker(rows, request),
        batch_size=None,
        num_workers=request.workers,
        persistent_workers=True,
    )


def _batches(rows: IterableDataset, request: Request) -> Iterator[dict[str, Any]]:
    for table in rows.iter(batch_size=request.batch_size):
        # One batch has several chunks where row groups meet.
        for batch in table.combine_chunks().to_batches():
            yield tensors(batch, request)


class _Worker(torch.utils.data.IterableDataset[dict[str, Any]]):
    """The rows of each worker: whole batches of its files, as `datasets` itself divides them."""

    def __init__(self, rows: IterableDataset, request: Request) -> None:
        super().__init__()
        self._rows, self._request = rows, request

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        share = self._rows.shard(num_shards=worker.num_workers, index=worker.id)
        return _batches(share, self._request)
