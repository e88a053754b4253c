"""Record batches of Arrow into torch, as pyarrow's documentation recommends: by DLPack, without a copy."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from compare.request import Request


def tensors(batch: pa.RecordBatch, request: Request) -> dict[str, torch.Tensor]:
    """Each column as a tensor; those to stack in one tensor more."""
    columns = {name: tensor(batch.column(name)) for name in batch.schema.names}
    return stacked(columns, request)


def tensor(column: Any) -> torch.Tensor:
    """One column; a fixed-size list has a row per vector."""
    if pa.types.is_fixed_size_list(column.type):
        # `flatten` minds the offset of a slice, `values` does not.
        return torch.from_dlpack(column.flatten()).reshape(len(column), column.type.list_size)
    return torch.from_dlpack(column)


def stacked(columns: dict[str, torch.Tensor], request: Request) -> dict[str, torch.Tensor]:
    """Join the columns to stack in torch."""
    if not request.stack:
        return columns
    kept = {name: column for name, column in columns.items() if name not in request.stack}
    return {"x": torch.stack([columns[name] for name in request.stack], dim=1), **kept}
