"""pyiceberg's expressions as SQL predicates. pyiceberg itself is never imported: the user's objects name their own types."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

from tensorquery import _core
from tensorquery.errors import ConfigError

__all__ = ["to_scan_filter"]

_COMPARISONS = {
    "EqualTo": "=",
    "NotEqualTo": "<>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}


def to_scan_filter(expression: Any | None) -> str | None:
    """A `scan_filter` as a SQL predicate.

    Args:
        expression: SQL, a pyiceberg expression over top-level columns, or None.

    Raises:
        ConfigError: It is of another kind, or has a part that has no SQL form.
    """
    if expression is None:
        return None
    if isinstance(expression, str):
        if not expression.strip():
            raise ConfigError('scan_filter="" is empty; pass None, or a predicate such as "x > 1"')
        return expression
    if not type(expression).__module__.startswith("pyiceberg."):
        raise ConfigError(
            f"scan_filter={expression!r} must be SQL or a pyiceberg expression, for example "
            'pyiceberg.expressions.GreaterThan("x", 1)'
        )
    return _sql(expression)


def _sql(expression: Any) -> str:
    kind = type(expression).__name__
    if kind == "And":
        return f"({_sql(expression.left)} AND {_sql(expression.right)})"
    if kind == "Or":
        return f"({_sql(expression.left)} OR {_sql(expression.right)})"
    if kind == "Not":
        return f"(NOT {_sql(expression.child)})"
    if kind == "AlwaysTrue":
        return "TRUE"
    if kind == "AlwaysFalse":
        return "FALSE"
    column = _core.quote_identifier(getattr(getattr(expression, "term", None), "name", ""))
    if kind == "IsNull":
        return f"{column} IS NULL"
    if kind == "NotNull":
        return f"{column} IS NOT NULL"
    if kind in ("In", "NotIn"):
        # A set: sorted, so that every process plans the same text.
        items = ", ".join(sorted(_literal(item) for item in expression.literals))
        return f"{column} {'IN' if kind == 'In' else 'NOT IN'} ({items})"
    if kind in ("IsNaN", "NotNaN"):
        return f"{'NOT ' if kind == 'NotNaN' else ''}isnan({column})"
    if kind in _COMPARISONS:
        return f"{column} {_COMPARISONS[kind]} {_literal(expression.literal)}"
    if kind in ("StartsWith", "NotStartsWith"):
        negated = "NOT " if kind == "NotStartsWith" else ""
        return f"{negated}starts_with({column}, {_literal(expression.literal)})"
    raise ConfigError(
        f"the pyiceberg expression {kind} has no SQL form here; write the scan_filter as SQL"
    )


def _literal(literal: Any) -> str:
    """A literal of pyiceberg as SQL: its kind of literal says the type."""
    value, kind = getattr(literal, "value", literal), type(literal).__name__
    day = datetime.date(1970, 1, 1)
    if kind == "DateLiteral":
        return f"DATE '{(day + datetime.timedelta(days=value)).isoformat()}'"
    if kind in ("TimestampLiteral", "TimestampNanoLiteral"):
        micros = value if kind == "TimestampLiteral" else value // 1000
        time = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
        return f"TIMESTAMP '{time.isoformat(sep=' ')}'"
    if kind == "TimeLiteral":
        return f"arrow_cast({value}, 'Time64(Microsecond)')"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, decimal.Decimal):
        exponent = int(value.as_tuple().exponent)
        digits, scale = len(value.as_tuple().digits) + max(0, exponent), max(0, -exponent)
        return f"CAST('{value:f}' AS DECIMAL({max(digits, scale + 1)}, {scale}))"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, uuid.UUID):
        return f"X'{value.hex}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise ConfigError(f"the value {value!r} of a pyiceberg expression has no SQL form")
