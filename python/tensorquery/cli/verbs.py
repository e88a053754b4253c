"""The commands: each turns a query into lines to print."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

from tensorquery.cli.arguments import Arguments
from tensorquery.cli.bench import bench
from tensorquery.cli.text import text_table
from tensorquery.display.values import python_value
from tensorquery.sql.query import Query

__all__ = ["VERBS"]


def _explain(query: Query, asked: Arguments) -> Iterator[str]:
    text = query.explain(analyze=asked.analyze).rstrip()
    yield _json({"explain": text}) if asked.format == "json" else text


def _schema(query: Query, asked: Arguments) -> Iterator[str]:
    columns = query._core.columns()
    if asked.format == "json":
        yield _json(
            [{"name": name, "type": kind, "nullable": maybe} for name, kind, maybe in columns]
        )
        return
    rows = [(name, kind, "" if nullable else "not null") for name, kind, nullable in columns]
    yield from text_table(["column", "type", ""], rows, [False] * 3)


def _count(query: Query, asked: Arguments) -> Iterator[str]:
    rows = query.count()
    yield _json({"rows": rows}) if asked.format == "json" else str(rows)


def _head(query: Query, asked: Arguments) -> Iterator[str]:
    table = query.head(asked.rows)
    columns = [[python_value(cell) for cell in column] for column in table.columns]
    rows = list(zip(*columns, strict=True))
    if asked.format == "json":
        # An object for each row, with names as they are: a later column of the same name would hide the first.
        yield _json([dict(zip(table.column_names, row, strict=True)) for row in rows])
        return
    texts = [[_cell(value) for value in row] for row in rows]
    numbers = [
        all(isinstance(value, (int, float, type(None))) for value in column) and bool(column)
        for column in columns
    ]
    yield from text_table(table.column_names, texts, numbers)


def _shards(query: Query, asked: Arguments) -> Iterator[str]:
    plan = query.plan_shards(
        world_size=asked.world_size, num_workers=asked.num_workers, batch_size=asked.batch_size
    )
    yield _json(plan.to_dict()) if asked.format == "json" else str(plan)


def _bench(query: Query, asked: Arguments) -> Iterator[str]:
    if asked.format == "json":
        yield _json(list(bench(query, asked)))
        return
    for epoch in bench(query, asked):
        said = f"epoch {epoch['epoch']}: {epoch['rows']:,} rows in {epoch['batches']:,} batches, {epoch['seconds']:.2f} s"
        if epoch["batches"]:
            said += (
                f", {epoch['rows_per_second']:,.0f} rows/s, first batch after {epoch['first_batch_seconds']:.3f} s, "
                f"waiting {epoch['wait_share']:.0%} of the time"
            )
        yield said


VERBS: Mapping[str, Callable[[Query, Arguments], Iterator[str]]] = {
    "explain": _explain,
    "schema": _schema,
    "count": _count,
    "head": _head,
    "shards": _shards,
    "bench": _bench,
}
"""The functions that run, by command."""


def _json(value: Any) -> str:
    return json.dumps(_jsonable(value), ensure_ascii=False, indent=2)


def _jsonable(value: Any) -> Any:
    """A value as JSON has it: times as in ISO 8601, bytes in base64, decimals as text, no number as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def _cell(value: Any) -> str:
    return "null" if value is None else str(value)
