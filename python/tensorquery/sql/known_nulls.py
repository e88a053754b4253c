"""Nulls by column, where they are known without reading rows of files."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from tensorquery import _core

__all__ = ["known_nulls", "plain_table"]

# Columns and nothing else of one table: then an output column is the stored column of its name.
_NAME = r'(?:[A-Za-z_]\w*|"[^"]+")'
_PLAIN = re.compile(
    rf"\s*SELECT\s+(?:\*|{_NAME}(?:\s*,\s*{_NAME})*)\s+FROM\s+(?P<table>{_NAME})\s*;?\s*",
    re.IGNORECASE,
)
_MOST_FILES = 64
_MOST_CHUNKS = 20_000
_MOST_ROWS = 10_000_000


def plain_table(sql: str) -> str | None:
    """The table whose columns a query reads as they are.

    >>> plain_table("SELECT a, b FROM Points"), plain_table("SELECT a + 1 FROM points")
    ('points', None)
    """
    match = _PLAIN.fullmatch(sql)
    if match is None:
        return None
    name = match["table"]
    return name[1:-1] if name.startswith('"') else name.lower()


def known_nulls(query: _core.Query, kind: str | None, plan: _core.Plan) -> dict[str, int]:
    """Null values by output column.

    Args:
        query: Any query.
        kind: The kind of the table whose columns it reads as they are; None for all other queries.
        plan: Its plan by splits.

    Returns:
        Columns that cannot be null, and those whose nulls the footers of local Parquet files say, or a
        look at a table in memory; other columns are missing.
    """
    columns = query.columns()
    found = {name: 0 for name, _, nullable in columns if not nullable}
    names = [name for name, _, nullable in columns if nullable]
    if kind == "memory" and names and (plan.known_rows() or 0) <= _MOST_ROWS:
        found |= _in_memory(query, names)
    elif kind == "parquet":
        found |= _in_footers(plan, names)
    return found


def _in_memory(query: _core.Query, names: list[str]) -> dict[str, int]:
    counts = ", ".join(
        f'count(*) - count({_core.quote_identifier(name)}) AS "{number}"'
        for number, name in enumerate(names)
    )
    pyarrow = importlib.import_module("pyarrow")
    (row,) = pyarrow.table(query.expressions(counts).collect()).to_pylist()
    return {name: row[str(number)] for number, name in enumerate(names)}


def _in_footers(plan: _core.Plan, names: list[str]) -> dict[str, int]:
    files = {
        path: (size, snapshot)
        for _, path, size, _, _, _, _, _, snapshot in plan.splits(list(range(plan.num_splits)))
    }
    local = all("://" not in path and snapshot is None for path, (_, snapshot) in files.items())
    if not local or not 0 < len(files) <= _MOST_FILES:
        return {}
    parquet = importlib.import_module("pyarrow.parquet")
    totals: dict[str, int | None] = dict.fromkeys(names, 0)
    chunks = 0
    for path, (size, _) in files.items():
        if Path(path).stat().st_size != size:
            # Another file by now: its statistics say nothing about the query's rows.
            return {}
        footer = parquet.read_metadata(path)
        chunks += footer.num_columns * footer.num_row_groups
        if chunks > _MOST_CHUNKS:
            return {}
        _add(totals, footer)
    return {name: total for name, total in totals.items() if total is not None}


def _add(totals: dict[str, int | None], footer: Any) -> None:
    """Add a file's nulls; None where its footer does not say them."""
    stored = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    for name, total in totals.items():
        if total is None:
            continue
        if name not in stored:
            # A column of directories, a nested one, or one that the file lacks.
            totals[name] = None
            continue
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(stored[name]).statistics
            if statistics is None or not statistics.has_null_count:
                totals[name] = None
                break
            total += statistics.null_count
        else:
            totals[name] = total
