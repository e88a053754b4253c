"""A preview of a query for notebooks: as much as can be found out in two seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorquery import _core
from tensorquery.display.html import sized
from tensorquery.display.limit import Limit
from tensorquery.display.query import QueryPreview
from tensorquery.errors import NotShardableError
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES, plan_splits
from tensorquery.sql.known_nulls import known_nulls
from tensorquery.sql.stages import place_of

__all__ = ["preview"]

SECONDS = 2.0
"""For how long a picture of a query may plan and read."""
_ROWS = 8
# Joins that compare every row with every row, and look up too rarely to be ended.
_ENDLESS = ("CrossJoinExec", "NestedLoopJoinExec")


@dataclass
class _Facts:
    """Facts that were found out in time."""

    plan: _core.Plan | None = None
    staged: str | None = None
    rows: Any | None = None
    nulls: dict[str, int] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    note: str | None = None


def preview(
    query: _core.Query, head: Callable[[int], Any], kind_of: Callable[[], str | None]
) -> QueryPreview:
    """Collect the preview of a query; a part that fails, or takes too long, shows the reason instead.

    Args:
        query: Any query.
        head: Gives its first rows.
        kind_of: The kind of the table whose columns it reads as they are; None for all other queries.
    """
    facts = _Facts()
    with Limit(SECONDS) as limit:
        _find_plan(query, facts)
        _find_rows(query, head, facts, limit.works)
        _find_nulls(query, kind_of, facts)
    if limit.passed:
        facts.note = f"the rest takes longer than {SECONDS:g} s: query.head() shows rows, query.describe() counts"
    columns: list[tuple[str, str, bool]] | Exception
    try:
        columns = query.columns()
    except Exception as error:
        columns = error
        return QueryPreview(query.sql, columns)
    return QueryPreview(
        query.sql, columns, _costs(facts), facts.rows, facts.nulls, facts.errors, facts.note
    )


# Whatever goes wrong is shown: a picture that raises hides the query that it is of.


def _find_plan(query: _core.Query, facts: _Facts) -> None:
    try:
        facts.plan = plan_splits(query, DEFAULT_SPLIT_BYTES, None)
    except NotShardableError as error:
        why = str(error).partition(" is not row-local")[0]
        facts.staged = re.sub(r" \(\w+Exec\)$", "", why)
    except Exception as error:
        facts.errors.append(error)


def _find_rows(
    query: _core.Query, head: Callable[[int], Any], facts: _Facts, limited: bool
) -> None:
    if facts.errors:
        return
    try:
        quick = facts.plan is not None and facts.plan.known_counts() is not None
        if not quick and not limited:
            facts.note = "query.head() shows the first rows"
        elif not quick and any(name in query.explain("never", place_of(None)) for name in _ENDLESS):
            facts.note = "query.head() shows the first rows; it joins every row with every row"
        else:
            facts.rows = head(_ROWS)
    except ImportError as error:
        facts.note = f"the first rows: {error}"
    except Exception as error:
        facts.errors.append(error)


def _find_nulls(query: _core.Query, kind_of: Callable[[], str | None], facts: _Facts) -> None:
    if facts.plan is None or facts.errors:
        return
    try:
        facts.nulls = known_nulls(query, kind_of(), facts.plan)
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
