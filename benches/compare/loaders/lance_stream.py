"""LanceDB's ``StreamingDataset``, which shuffles and resumes, of converted data.

It delivers row by row, and a DataLoader collates. The transform makes a matrix of each record batch that was read, whose
rows are tensors: dicts of Python numbers, which it makes without one, are slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import lancedb
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from compare.loaders.lance_data import TABLES, convert, table_name
from compare.loaders.tensors import tensor
from compare.request import Request

READ_ROWS = 1024
"""Rows of a read: its default of 64 is for rows that are images."""


def prepare(request: Request) -> None:
    # Its sort of six million row numbers does not fit the default of 100 MB.
    os.environ["LANCEDB_PERM_BUILDER_MEMORY_LIMIT"] = str(1 << 30)
    convert(request)


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    table = lancedb.connect(TABLES).open_table(table_name(request))
    names = list(request.columns or table.schema.names)
    dataset = StreamingDataset(
        table,
        num_splits=1,
        shuffle=request.shuffle_buffer is not None,
        columns=names,
        read_batch_size=READ_ROWS,
        transform=_matrix,
        transform_parallelism=request.threads,
    )
    for rows in StreamingDataLoader(dataset, batch_size=request.batch_size):
        if len(names) == 1:
            yield {names[0]: rows}
        else:
            yield dict(zip(names, rows.unbind(dim=1), strict=True))


def _matrix(batch: pa.RecordBatch) -> torch.Tensor:
    columns = [tensor(column) for column in batch.columns]
    if len(columns) == 1:
        return columns[0]
    return torch.stack([column.to(torch.float64) for column in columns], dim=1)
