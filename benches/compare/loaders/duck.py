"""DuckDB: a query whose result streams as Arrow record batches of the batch size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb

from compare.loaders.tensors import tensors
from compare.request import Request


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    # Its guide to performance recommends to give up the order where it does not matter; to training it does not.
    connection = duckdb.connect(
        config={"threads": request.threads, "preserve_insertion_order": False}
    )
    columns = "*" if request.columns is None else ", ".join(request.columns)
    where = f" WHERE {request.sql}" if request.filters else ""
    query = f"SELECT {columns} FROM read_{request.format}('{request.files}'){where}"
    for batch in connection.execute(query).to_arrow_reader(request.batch_size):
        yield tensors(batch, request)
