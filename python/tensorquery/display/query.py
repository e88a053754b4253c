"""A query as a notebook shows it: columns, first rows, and what reading it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tensorquery.display.html import (
    Raw,
    box,
    failure,
    folded,
    line,
    muted,
    table,
    text_of,
    without_secrets,
)
from tensorquery.display.values import python_value

__all__ = ["QueryPreview", "query_html"]

_COLUMNS = 20
_MOST_COLUMNS = 200


@dataclass
class QueryPreview:
    """The facts of a query that are shown.

    Attributes:
        sql: The query as it was written.
        columns: Name, type and nullability of each output column; or why they are not known.
        costs: Rows, bytes and files, in words, each as far as it is known.
        rows: The first rows, as a `pyarrow.Table`.
        nulls: Null values by column, where known.
        errors: What failed meanwhile.
        note: A further remark.
    """

    sql: str
    columns: list[tuple[str, str, bool]] | Exception
    costs: list[str] = field(default_factory=list)
    rows: Any | None = None
    nulls: dict[str, int] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    note: str | None = None


def query_html(preview: QueryPreview) -> str:
    """The query in a box; a part that failed, or took too long, shows the reason instead.

    Args:
        preview: Of any query.

    Returns:
        HTML.
    """
    columns = preview.columns
    if isinstance(columns, Exception):
        return box("Query", failure(columns), _sql(preview.sql))
    word = "column" if len(columns) == 1 else "columns"
    return box(
        "Query",
        line(f"{len(columns)} {word}", *preview.costs),
        _columns(columns, preview.nulls),
        *(failure(error) for error in preview.errors),
        None if preview.rows is None else _first_rows(preview.rows),
        None if preview.note is None else line(muted(preview.note)),
        _sql(preview.sql),
    )


def _columns(columns: list[tuple[str, str, bool]], nulls: dict[str, int]) -> Raw:
    counted = bool(nulls)
    rows = []
    for name, kind, nullable in columns[:_MOST_COLUMNS]:
        row: list[Any] = [name, kind]
        if counted:
            row.append(f"{nulls[name]:,}" if name in nulls else muted("?"))
        elif not nullable:
            row[1] = Raw(f"{text_of(kind)} {muted('not null')}")
        rows.append(row)
    titles = ["column", "type"] + ["nulls"] * counted
    shown = table(titles, rows, [False, False] + [True] * counted)
    more = len(columns) - len(rows)
    return shown if not more else Raw(shown + line(muted(f"… and {more:,} more columns")))


def _first_rows(rows: Any) -> Raw:
    names = rows.column_names[:_COLUMNS]
    if not rows.num_rows:
        return line(muted("no rows"))
    columns = [[_value(cell) for cell in rows.column(number)] for number in range(len(names))]
    numbers = [_is_number(rows.schema.field(number).type) for number in range(len(names))]
    shown = table(names, list(zip(*columns, strict=True)), numbers)
    more = len(rows.column_names) - len(names)
    note = None if not more else line(muted(f"… and {more:,} more columns"))
    return Raw(shown + (note or ""))


def _value(cell: Any) -> str | None:
    """A value as text; None for null."""
    if not cell.is_valid:
        return None
    value = python_value(cell)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.7g}"
    return str(value)


def _is_number(kind: Any) -> bool:
    return any(word in str(kind) for word in ("int", "float", "double", "decimal")) and not any(
        char in str(kind) for char in "<["
    )


def _sql(sql: str) -> Raw:
    text = text_of(without_secrets(sql.strip()))
    return folded("SQL", Raw(f"<pre>{text}</pre>"))
