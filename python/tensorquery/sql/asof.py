"""Point-in-time joins: the SQL that gives each row the newest row of another table that was known at its time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from tensorquery._util.options import check_bool, check_choice, expanded_path
from tensorquery.errors import ConfigError
from tensorquery.sql.filters.predicate import quote_name, quote_text

__all__ = ["asof_join"]

Names: TypeAlias = str | Sequence[str]
"""One column or several."""

STRATEGIES = ("backward", "forward")
METHODS = ("sort", "interval")

# Columns of the SQL that are not of its result.
_TIME, _SIDE, _ROW, _MATCH, _END = (
    quote_name(f"__asof_{name}") for name in ("time", "side", "row", "match", "end")
)
_COMMENTS = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_QUERY = re.compile(r"(?:SELECT|WITH|VALUES|\()", re.IGNORECASE)


def asof_join(
    left: str | os.PathLike[str],
    right: str | os.PathLike[str],
    *,
    columns: Sequence[str] | Mapping[str, str],
    on: str | None = None,
    left_on: str | None = None,
    right_on: str | None = None,
    by: Names | None = None,
    left_by: Names | None = None,
    right_by: Names | None = None,
    strategy: str = "backward",
    tolerance: int | float | Decimal | timedelta | str | None = None,
    allow_exact_matches: bool = True,
    ties: Names = (),
    time_type: str | None = None,
    method: str = "sort",
) -> str:
    """Write the SQL of a point-in-time (as-of) join, for `Session.sql`, `create_dataloader` or a view.

    Each row of `left` comes out exactly once, with the columns of the row of `right` that has the same key and the
    newest time at or before its own; NULLs where there is none. Rows of `left` without a key or a time stay, with
    NULLs; such rows of `right` match nothing. The order of the rows is not promised.

    `left` and `right` are a table's exact name (``"flights"``, ``"lake.shop.events"``; parts with dots in double
    quotes), a path literal in single quotes (``"'data/*.parquet'"``) or a ``pathlib.Path``, or a query (``"SELECT …"``).

    Args:
        left: The rows of the result, with all their columns. It is read once.
        right: Where to look. It is read twice with ``method="sort"``, so a query must not call ``random()``.
        columns: Columns of `right` to add, under their own names or, as a dict, under other ones:
            ``{"temp": "temp_before"}``. One that `left` has, too, becomes ``temp_1``.
        on: The time column, in both; any type with an order: timestamps, dates, numbers.
        left_on: The time column of `left`, with `right_on`, instead of `on`.
        right_on: The time column of `right`.
        by: Key columns that must be equal, in both; None compares every row with every other.
        left_by: The key columns of `left`, with `right_by`, instead of `by`.
        right_by: The key columns of `right`, in the order of `left_by`.
        strategy: "backward" takes the newest row at or before the time, "forward" the oldest at or after it (for labels:
            what happened next).
        tolerance: How far away the row may be, inclusive: a number for numeric times, a ``timedelta`` or the text of a SQL
            interval (``"90 minutes"``) for timestamps, whole days for dates. None sets no limit.
        allow_exact_matches: False leaves out rows of the same time: strictly before, or strictly after.
        ties: Columns of `right` that decide between rows of equal key and time: the greatest wins, NULL being the least.
            What they leave open is decided by the values of `columns`, in their order, so that the result depends on the
            rows alone and never on their order in files.
        time_type: The Arrow type that both times are compared in, such as "Timestamp(ns)" or "Timestamp(us)". Needed for
            exactness where they are timestamps of different units: DataFusion compares those in the coarser one, so
            that a row less than one such unit later counts as one of the same time. None compares them as they are.
        method: "sort" sorts both sides together by key and time: one sort for any data. "interval" gives each row of
            `right` the time at which the next one takes over and joins on the key: nothing of `left` is sorted or
            staged, but every row is compared with all rows of its key. Faster up to about a hundred rows of `right`
            per key, far slower with thousands; ``docs/point-in-time.md`` has figures. Both give the same rows.

    Returns:
        One SELECT statement.

    Raises:
        ConfigError: A name is missing, doubled or no string, the two sides have a different number of keys, or an option is unknown.

    Examples:
        >>> import pyarrow as pa
        >>> import tensorquery as tq
        >>> session = tq.Session()
        >>> session.register_table("clicks", pa.table({"user": [1, 1, 2], "at": [10, 20, 10]}))
        >>> session.register_table("prices", pa.table({"user": [1, 1, 2], "at": [5, 20, 11], "price": [0.5, 0.7, 0.9]}))
        >>> sql = asof_join("clicks", "prices", on="at", by="user", columns=["price"])
        >>> sorted(session.sql(sql).to_arrow().to_pylist(), key=lambda row: (row["user"], row["at"]))
        [{'user': 1, 'at': 10, 'price': 0.5}, {'user': 1, 'at': 20, 'price': 0.7}, {'user': 2, 'at': 10, 'price': None}]
    """
    backward = check_choice("strategy", strategy, STRATEGIES) == "backward"
    exact = check_bool("allow_exact_matches", allow_exact_matches)
    by_interval = check_choice("method", method, METHODS) == "interval"
    left_time, right_time = _times(on, left_on, right_on)
    left_keys, right_keys = _keys(by, left_by, right_by)
    if by_interval and not left_keys:
        raise ConfigError(
            'method="interval" joins on the key and there is none; pass by=, or use method="sort"'
        )
    outputs = _outputs(columns)
    reach = _reach(tolerance)
    if time_type is not None and not (isinstance(time_type, str) and time_type.strip()):
        raise ConfigError(
            f'time_type={time_type!r} must be an Arrow type, for example "Timestamp(us)"'
        )

    keys = [quote_name(f"__asof_key_{number}") for number in range(len(left_keys))]
    left_keys = [f"l.{quote_name(name)}" for name in left_keys]
    right_keys = [f"r.{quote_name(name)}" for name in right_keys]
    now, then = f"l.{quote_name(left_time)}", f"r.{quote_name(right_time)}"
    if time_type is not None:
        now, then = (f"arrow_cast({time}, {quote_text(time_type)})" for time in (now, then))
    known = " AND ".join(f"{column} IS NOT NULL" for column in [*right_keys, then])
    values = [quote_name(f"__asof_value_{number}") for number in range(len(outputs))]
    # Among rows of one time the last one by this order wins, in either direction.
    deciding = dict.fromkeys(_columns_of("r", [*_names("ties", ties), *outputs]))
    order = ", ".join(
        [f"{then} {'ASC' if backward else 'DESC'}"]
        + [f"{column} ASC NULLS FIRST" for column in deciding if column != then]
    )
    left_rows, right_rows = f"{_source('left', left)} AS l", f"{_source('right', right)} AS r"
    carried = _aliased([(then, _TIME), *zip(_columns_of("r", outputs), values, strict=True)])
    added = _aliased(
        (f"r.{value}", quote_name(name))
        for value, name in zip(values, outputs.values(), strict=True)
    )
    if by_interval:
        begins, ends = (">=", "<") if exact else (">", "<=")
        if not backward:
            begins, ends = begins.replace(">", "<"), ends.replace("<", ">")
        partition = ", ".join(right_keys)
        return f"""\
SELECT l.*, {added}
FROM {left_rows}
LEFT JOIN (
  SELECT {_aliased(zip(right_keys, keys, strict=True))}, {carried},
    lead({then}) OVER (PARTITION BY {partition} ORDER BY {order}) AS {_END}
  FROM {right_rows}
  WHERE {known}
) AS r
ON {" AND ".join(f"{mine} = r.{key}" for mine, key in zip(left_keys, keys, strict=True))}
  AND {now} {begins} r.{_TIME} AND ({now} {ends} r.{_END} OR r.{_END} IS NULL)\
{_within(now, reach, backward)}"""

    numbered = f"row_number() OVER (ORDER BY {order}) AS {_ROW}"
    both = [*zip(left_keys, keys, strict=True), (now, _TIME), ("1", _SIDE)]
    # At equal times the side that sorts first is seen by the other.
    other = [*zip(right_keys, keys, strict=True), (then, _TIME), ("0" if exact else "2", _SIDE)]
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    return f"""\
SELECT l.* EXCEPT ({", ".join([*keys, _TIME, _SIDE, _ROW, _MATCH])}), {added}
FROM (
  SELECT * FROM (
    SELECT *, max({_ROW}) OVER (
      {partition}ORDER BY {_TIME} {"ASC" if backward else "DESC"} NULLS FIRST, {_SIDE}
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS {_MATCH}
    FROM (
      SELECT l.*, {_aliased(both)}
      FROM {left_rows}
      UNION ALL BY NAME
      SELECT {_aliased(other)}, {numbered}
      FROM {right_rows}
      WHERE {known}
    )
  ) WHERE {_SIDE} = 1
) AS l
LEFT JOIN (
  SELECT {carried}, {numbered}
  FROM {right_rows}
  WHERE {known}
) AS r
ON l.{_MATCH} = r.{_ROW}{_within(f"l.{_TIME}", reach, backward)}"""


def _source(side: str, source: Any) -> str:
    """The text behind FROM, without an alias."""
    if isinstance(source, os.PathLike):
        return quote_text(expanded_path(source))
    if not isinstance(source, str) or not source.strip():
        raise ConfigError(
            f"{side}={source!r} must be a table's name, a path or a query, for example "
            f'{side}="flights" or {side}="SELECT …"'
        )
    text = source.strip()
    if _QUERY.match(text, _COMMENTS.match(text).end()):  # type: ignore[union-attr]
        # A line of its own: the query may end with a comment.
        return f"(\n{text.rstrip(';')}\n)"
    if text.startswith(("'", '"')):
        return text
    if "/" in text or "*" in text or text.endswith((".parquet", ".csv", ".json", ".orc")):
        raise ConfigError(
            f"{side}={source!r} looks like a path; write it in single quotes within the string, as in SQL: "
            f"{side}={quote_text(text)!r}"
        )
    return ".".join(quote_name(part) for part in text.split("."))


def _times(on: Any, left_on: Any, right_on: Any) -> tuple[str, str]:
    """The time column of each side."""
    given = [left_on, right_on] if on is None else [on]
    if on is not None and (left_on is not None or right_on is not None):
        raise ConfigError(f"on={on!r} is for both sides; leave out left_on and right_on")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"the time column must be a name, got {name!r}; pass on=, or both left_on= and right_on="
            )
    return given[0], given[-1]


def _keys(by: Any, left_by: Any, right_by: Any) -> tuple[list[str], list[str]]:
    """The key columns of each side, in pairs."""
    if by is not None:
        if left_by is not None or right_by is not None:
            raise ConfigError(f"by={by!r} is for both sides; leave out left_by and right_by")
        left_by = right_by = by
    left, right = _names("left_by", left_by or ()), _names("right_by", right_by or ())
    if len(left) != len(right):
        raise ConfigError(
            f"left_by={left!r} and right_by={right!r} must name the same number of columns; the first of one "
            "is compared with the first of the other"
        )
    return left, right


def _names(option: str, names: Any) -> list[str]:
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(name and isinstance(name, str) for name in names):
        raise ConfigError(f'{option}={names!r} must be a name or a list of names, for example "id"')
    return list(names)


def _outputs(columns: Any) -> dict[str, str]:
    """The columns to take, each with its name in the result."""
    if isinstance(columns, Mapping):
        outputs = dict(columns)
    else:
        names = _names("columns", columns)
        outputs = dict(zip(names, names, strict=True))
        if len(outputs) < len(names):
            raise ConfigError(f"columns={names!r} names a column twice")
    if not outputs:
        raise ConfigError(f"columns={columns!r} adds nothing; name at least one column of right")
    _names("columns", [*outputs, *outputs.values()])
    if len(set(outputs.values())) < len(outputs):
        raise ConfigError(f"columns={columns!r} gives two columns the same name")
    return outputs


def _reach(tolerance: Any) -> str | None:
    """The tolerance as a SQL expression."""
    if tolerance is None:
        return None
    if isinstance(tolerance, timedelta) and tolerance >= timedelta(0):
        rest = timedelta(0, tolerance.seconds, tolerance.microseconds)
        text = f"{tolerance.days} days"
        if rest:
            text += f" {rest // timedelta(microseconds=1)} microseconds"
        return f"INTERVAL {quote_text(text)}"
    if isinstance(tolerance, str) and tolerance.strip() and "-" not in tolerance:
        return f"INTERVAL {quote_text(tolerance)}"
    is_number = isinstance(tolerance, int | float | Decimal) and not isinstance(tolerance, bool)
    if is_number and 0 <= tolerance < float("inf"):
        return str(tolerance)
    raise ConfigError(
        f"tolerance={tolerance!r} must be a number of at least 0, a timedelta or the text of an interval, "
        'for example tolerance="90 minutes"'
    )


def _within(now: str, reach: str | None, backward: bool) -> str:
    if reach is None:
        return ""
    return f" AND r.{_TIME} " + (f">= {now} - {reach}" if backward else f"<= {now} + {reach}")


def _columns_of(alias: str, names: Iterable[str]) -> list[str]:
    return [f"{alias}.{quote_name(name)}" for name in names]


def _aliased(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{expression} AS {alias}" for expression, alias in pairs)
