"""pyarrow.dataset: ``to_batches``, which reads ahead in threads; batches end at borders of row groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from compare.loaders.tensors import tensors
from compare.request import Request


def prepare(request: Request) -> None:
    pa.set_cpu_count(request.threads)


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    dataset = ds.dataset(request.path, format=request.format)
    batches = dataset.to_batches(
        columns=None if request.columns is None else list(request.columns),
        filter=pq.filters_to_expression([list(request.filters)]) if request.filters else None,
        batch_size=request.batch_size,
    )
    for batch in batches:
        if batch.num_rows:
            yield tensors(batch, request)
