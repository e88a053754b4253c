"""polars: a lazy scan, collected in chunks by the streaming engine; ``DataFrame.to_torch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from compare.request import Request

_OPERATORS = {">=": "ge", "<=": "le", ">": "gt", "<": "lt", "=": "eq"}


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    scans = {"parquet": pl.scan_parquet, "csv": pl.scan_csv, "json": pl.scan_ndjson}
    frame = scans[request.format](request.files)
    for column, operator, value in request.filters:
        frame = frame.filter(getattr(pl.col(column), _OPERATORS[operator])(value))
    if request.columns is not None:
        frame = frame.select(request.columns)
    # It documents that an order that need not be kept is faster.
    for chunk in frame.collect_batches(chunk_size=request.batch_size, maintain_order=False):
        if not len(chunk):
            continue
        if request.stack:
            rest = chunk.drop(request.stack)
            yield {"x": chunk.select(request.stack).to_torch(), **rest.to_torch("dict")}
        else:
            yield chunk.to_torch("dict")
