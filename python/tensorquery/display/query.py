"""A query as a notebook shows it: columns, first rows, and what reading it costs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorquery import _core
from tensorquery.display.html import (
    Raw,
    box,
    failure,
    folded,
    line,
    muted,
    sized,
    table,
    text_of,
    without_secrets,
)
from tensorquery.display.limit import Limit
from tensorquery.display.nulls import known_nulls
from tensorquery.display.values import python_value
from tensorquery.errors import NotShardableError
from tensorquery.shards import DEFAULT_SPLIT_BYTES, plan_splits

if TYPE_CHECKING:
    from tensorquery.query import Query

__all__ = ["query_html"]

SECONDS = 2.0
"""For how long a picture of a query may plan and read."""
_ROWS = 8
_COLUMNS = 20
_MOST_COLUMNS = 200
# Joins that compare every row with every row, and look up too rarely to be ended.
_ENDLESS = ("CrossJoinExec", "NestedLoopJoinExec")


@dataclass
class _Facts:
    """What was found out in time."""

    plan: _core.Plan | None = None
    staged: str | None = None
    rows: Any | None = None
    nulls: dict[str, int] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    note: str | None = None


def query_html(query: Query) -> str:
    """The query in a box; what fails, or takes too long, is said in its place.

    Args:
        query: Any query.

    Returns:
        HTML.
    """
    facts = _gather(query)
    try:
        columns = query._core.columns()
    except Exception as error:
        return box("Query", failure(error), _sql(query))
    word = "column" if len(columns) == 1 else "columns"
    return box(
        "Query",
        line(f"{len(columns)} {word}", *_costs(facts)),
        _columns(columns, facts.nulls),
        *(failure(error) for error in facts.errors),
        None if facts.rows is None else _first_rows(facts.rows),
        None if facts.note is None else line(muted(facts.note)),
        _sql(query),
    )


def _gather(query: Query) -> _Facts:
    facts = _Facts()
    with Limit(SECONDS) as limit:
        _find_plan(query, facts)
        _find_rows(query, facts, limit.works)
        _find_nulls(query, facts)
    if limit.passed:
        facts.note = f"the rest takes longer than {SECONDS:g} s: query.head() shows rows, query.describe() counts"
    return facts


# Whatever goes wrong is shown: a picture that raises hides the query that it is of.


def _find_plan(query: Query, facts: _Facts) -> None:
    try:
        facts.plan = plan_splits(query._core, DEFAULT_SPLIT_BYTES, None)
    except NotShardableError as error:
        why = str(error).partition(" is not row-local")[0]
        facts.staged = re.sub(r" \(\w+Exec\)$", "", why)
    except Exception as error:
        facts.errors.append(error)


def _find_rows(query: Query, facts: _Facts, limited: bool) -> None:
    if facts.errors:
        return
    try:
        quick = facts.plan is not None and facts.plan.known_counts() is not None
        if not quick and not limited:
            facts.note = "query.head() shows the first rows"
        elif not quick and any(name in query.explain(stage="never") for name in _ENDLESS):
            facts.note = "query.head() shows the first rows; it joins every row with every row"
        else:
            facts.rows = query.head(_ROWS)
    except ImportError as error:
        facts.note = f"the first rows: {error}"
    except Exception as error:
        facts.errors.append(error)


def _find_nulls(query: Query, facts: _Facts) -> None:
    if facts.plan is None or facts.errors:
        return
    try:
        facts.nulls = known_nulls(query, facts.plan)
    except ImportError:
        # Without pyarrow there are no footers to look at, and the note on the first rows has said so.
        facts.nulls = {}
    except Exception as error:
        facts.errors.append(error)


def _costs(facts: _Facts) -> list[str]:
    """Rows, bytes and files, each as far as it is known."""
    if facts.staged is not None:
        return [f"a part of it runs once before rows are shared: {facts.staged}"]
    if facts.plan is None:
        return []
    plan = facts.plan
    told = []
    counts, stored = plan.known_counts(), plan.known_rows()
    if counts is not None:
        told.append(f"{sum(counts):,} rows")
    elif stored is not None:
        told.append(f"{stored:,} rows to read, before filters and joins")
    told.append(f"{sized(plan.bytes)} to read")
    files, files_pruned, groups, groups_pruned = plan.pruning()
    if files:
        word = "file" if files == 1 else "files"
        told.append(f"{files - files_pruned:,} of {files:,} {word}")
    if groups:
        told.append(f"{groups - groups_pruned:,} of {groups:,} row groups")
    return told


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


def _sql(query: Query) -> Raw:
    text = text_of(without_secrets(query.sql.strip()))
    return folded("SQL", Raw(f"<pre>{text}</pre>"))
