"""A session as a notebook shows it: its tables, their columns and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tensorquery.display.html import Raw, box, failure, folded, line, muted, sized, table
from tensorquery.display.limit import Limit

__all__ = ["Table", "session_html"]

_SECONDS = 2.0
_TABLES = 50
_COLUMNS = 100


class Table(Protocol):
    """A registered table, as `TableInfo` describes it."""

    @property
    def name(self) -> str:
        """The name in SQL."""
        ...

    @property
    def kind(self) -> str:
        """Its kind."""
        ...

    @property
    def files(self) -> int | None:
        """Number of files."""
        ...

    @property
    def bytes(self) -> int | None:
        """Bytes stored or held."""
        ...

    @property
    def rows(self) -> int | None:
        """Exact rows where known."""
        ...

    @property
    def quarantined(self) -> Sequence[Any]:
        """Files that are left out, each with a ``path``."""
        ...


def session_html(
    tables: Sequence[Table],
    catalogs: Sequence[str],
    columns_of: Callable[[str], Sequence[tuple[str, str, bool]]],
) -> str:
    """The session in a box; a table whose columns cannot be told has the error in their place.

    Args:
        tables: Its tables.
        catalogs: The names of its catalogs.
        columns_of: Name, type and nullability of a table's columns, by the table's name; nothing is read.

    Returns:
        HTML.
    """
    # Listing a catalog would take requests, perhaps over a network.
    below = line(f"catalogs: {', '.join(catalogs)}") if catalogs else None
    if not tables:
        return box("Session", line(muted("no tables")), below)
    rows: list[list[Any]] = []
    columns: list[Raw] = []
    with Limit(_SECONDS) as limit:
        for info in tables[:_TABLES]:
            row = [
                info.name,
                info.kind,
                "" if info.files is None else f"{info.files:,}",
                "" if info.bytes is None else sized(info.bytes),
                "" if info.rows is None else f"{info.rows:,}",
                muted("?"),
            ]
            rows.append(row)
            try:
                found = columns_of(info.name)
            except Exception as error:
                columns.append(folded(info.name, failure(error)))
                continue
            row[-1] = f"{len(found):,}"
            shown = table(
                ["column", "type"],
                [(name, kind) for name, kind, _ in found[:_COLUMNS]],
                [False] * 2,
            )
            if len(found) > _COLUMNS:
                shown = Raw(shown + line(muted(f"… and {len(found) - _COLUMNS:,} more columns")))
            columns.append(folded(info.name, shown))
    titles = ["table", "kind", "files", "size", "rows", "columns"]
    left_out = [
        failure(
            f"{info.name}: {len(info.quarantined):,} files are left out, for example {info.quarantined[0].path}"
        )
        for info in tables
        if info.quarantined
    ]
    more = len(tables) - len(rows)
    return box(
        "Session",
        table(titles, rows, [False, False, True, True, True, True]),
        line(muted(f"… and {more:,} more tables")) if more else None,
        below,
        line(muted(f"columns took longer than {_SECONDS:g} s")) if limit.passed else None,
        *left_out,
        *columns,
    )
