"""torch-dataloader-utils: ``StructuredDataset.create_dataloader``, in process or with its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from torch_dataloader_utils import StructuredDataset

from compare.loaders.tensors import stacked
from compare.request import Request


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    """Batches; with workers its loader keeps none between epochs, so each epoch starts them."""
    loader, _ = StructuredDataset.create_dataloader(
        path=request.path,
        format="parquet",
        columns=None if request.columns is None else list(request.columns),
        filters=pq.filters_to_expression([list(request.filters)]) if request.filters else None,
        batch_size=request.batch_size,
        num_workers=request.workers,
        shuffle=request.shuffle_buffer is not None,
        shuffle_buffer_size=request.shuffle_buffer,
    )
    if not request.stack:
        return loader
    return (stacked(batch, request) for batch in loader)
