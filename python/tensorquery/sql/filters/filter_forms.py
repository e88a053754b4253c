"""Turns `columns=` into names, and `filters=` into one SQL predicate: SQL, pyarrow's DNF lists, and pyarrow expressions.

The three forms of a condition keep the same rows. A pyarrow expression is read through its own
serialisation, the one by which pyarrow pickles it: an Arrow file whose schema metadata spell the tree and
whose columns hold the constants with their exact types. (Its text form does not escape strings, shortens long
lists and prints binary like a string.) Whatever is not fully understood is refused by name.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from tensorquery._util.arrow_c import Field, read_schema
from tensorquery._util.options import check_text, nearest_name
from tensorquery.errors import ConfigError, QueryError
from tensorquery.sql.filters import predicate
from tensorquery.sql.filters.predicate import Term
from tensorquery.sql.filters.pyarrow_expression import expression_to_term, scalar_to_term

__all__ = ["advised", "column_list", "narrowing", "to_sql"]

_FORMS = (
    'filters= is a SQL predicate such as "day >= \'2026-01-01\'", a list such as [("day", ">=", date)], or a '
    'pyarrow expression such as pyarrow.compute.field("day") >= date'
)
_OPERATORS = {"=": "=", "==": "=", "!=": "<>", "<": "<", ">": ">", "<=": "<=", ">=": ">="}
_OTHER_SPELLINGS = {"<>": "!=", "=<": "<=", "=>": ">="}
_WHERE = re.compile(r"\s*where\b", re.IGNORECASE)
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_UNKNOWN_COLUMN = re.compile(r'unknown column "(.*?)"')
_BITWISE = re.compile(r"&&?|\|\|?")
_REFUSED_OPERATORS = ("Cannot infer common", "Unsupported binary operator")
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)


def narrowing(
    columns: Iterable[str] | None, filters: Any | None, schema: Any
) -> tuple[list[str] | None, str | None]:
    """Names and a predicate of `columns` and `filters`, for the core.

    Args:
        columns: As in `Query.select`.
        filters: As in `Query.select`.
        schema: The columns that both may name: anything with `__arrow_c_schema__`.

    Returns:
        A None there stays None here.

    Raises:
        QueryError: A column is unknown, or a filter is malformed; names the nearest column.
        ConfigError: A name or a filter is not valid UTF-8; `columns` is empty, or no list of names.
    """
    names = column_list(columns)
    if names is not None:
        _check_known(names, schema)
    predicate = to_sql(filters, schema)
    for text in (*(names or ()), *([] if predicate is None else [predicate])):
        check_text("a column or filter", text)
    return names, predicate


def column_list(columns: Iterable[str] | None) -> list[str] | None:
    """The names of `columns`, whose iterator is read once; names in a set are sorted.

    Raises:
        ConfigError: They are no names, or none.

    >>> column_list({"y", "x"})
    ['x', 'y']
    """
    if columns is None:
        return None
    names = list(columns) if isinstance(columns, Iterable) else [columns]
    if isinstance(columns, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f'columns={columns!r} must be a list of names, for example ["x", "y"]')
    if not names:
        raise ConfigError("columns=[] selects nothing; name at least one column, or pass None")
    # numpy's strings print differently, and a state knows its query by the printed text.
    names = [str(name) for name in names]
    # A set comes in another order in every process, and a state belongs to one order.
    return sorted(names) if isinstance(columns, (set, frozenset)) else names


def _check_known(names: Sequence[str], schema: Any) -> None:
    known = [field.name for field in read_schema(schema).children]
    for name in names:
        if name not in known:
            near = nearest_name(name, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise QueryError(f"unknown column {name!r}{hint}; the columns are {', '.join(known)}")


@contextlib.contextmanager
def advised(filters: Any) -> Iterator[None]:
    """Where the core refuses a SQL predicate that is written as in other languages, say how it is written."""
    try:
        yield
    except QueryError as error:
        advice = _advice(filters, str(error)) if isinstance(filters, str) else None
        if advice is None:
            raise
        raise QueryError(f"{error}; {advice}") from None


def _advice(predicate: str, refusal: str) -> str | None:
    if "must be one boolean expression" in refusal and _WHERE.match(predicate):
        return "leave WHERE out"
    column = _UNKNOWN_COLUMN.match(refusal)
    if column is not None and f'"{column[1]}"' in predicate:
        return f"text is written in single quotes: '{column[1]}'"
    if not any(words in refusal for words in _REFUSED_OPERATORS):
        return None
    found = _BITWISE.search(_QUOTED.sub("", predicate))
    if found is None:
        return None
    return f"between conditions write {'AND' if '&' in found[0] else 'OR'}, not {found[0]}"


def to_sql(filters: Any, schema: Any | None = None) -> str | None:
    r"""Make one SQL predicate of `filters`.

    Args:
        filters: None; a SQL predicate (returned unchanged: the core parses and checks it); a list of
            ``(column, operator, value)``, all of which must hold; a list of such lists, one of which
            must hold; or a `pyarrow.compute.Expression`. Operators: =, ==, !=, <, >, <=, >=, in, not in.
        schema: The columns that the predicate may name: anything with `__arrow_c_schema__`. Without it,
            names and types are unchecked, NaN in comparisons of two columns is treated as SQL does,
            and some casts are refused.

    Returns:
        SQL that is valid inside WHERE, or None where there is no filter.

    Raises:
        ConfigError: `filters` has none of the three forms, or an operator is unknown.
        QueryError: A column is unknown, a value does not fit its column, or an expression has no
            exact SQL form.

    >>> to_sql([("day", ">=", "2026-01-01"), ("kind", "in", ["a", "b"])])
    '"day" >= \'2026-01-01\' AND "kind" IS NOT NULL AND "kind" IN (\'a\', \'b\')'
    """
    if filters is None:
        return None
    if isinstance(filters, str):
        if not filters.strip():
            raise ConfigError(
                f"filters={filters!r} is empty; give a predicate, or None for all rows"
            )
        return filters
    columns = None
    if schema is not None:
        columns = {field.name: field for field in read_schema(schema).children}
    # An expression can only exist where pyarrow is already imported.
    compute = sys.modules.get("pyarrow.compute")
    if compute is not None and isinstance(filters, compute.Expression):
        return expression_to_term(filters, columns).sql
    return _dnf_to_term(filters, columns).sql


def _dnf_to_term(filters: Any, columns: Mapping[str, Field] | None) -> Term:
    if not isinstance(filters, (list, tuple)):
        raise ConfigError(f"filters={filters!r} is a {type(filters).__name__}; {_FORMS}")
    if not filters or not all(isinstance(item, (list, tuple)) and item for item in filters):
        raise ConfigError(f"filters={filters!r} has an empty or malformed part; {_FORMS}")
    # As in pyarrow: a string in the innermost first place means that one level of lists is left out.
    alternatives = [filters] if isinstance(filters[0][0], str) else filters
    return predicate.combine(
        "OR",
        [
            predicate.combine("AND", [_condition(item, columns) for item in conjunction])
            for conjunction in alternatives
        ],
    )


def _condition(item: Any, columns: Mapping[str, Field] | None) -> Term:
    if not isinstance(item, (list, tuple)) or len(item) != 3 or not isinstance(item[0], str):
        raise ConfigError(
            f"filters= holds {item!r}, but expected (column, operator, value); {_FORMS}"
        )
    name, operator, value = item
    target = predicate.column([name], columns)
    if operator in ("in", "not in"):
        found = predicate.is_in(target, _members(name, operator, value))
        return found if operator == "in" else predicate.negation(found)
    if not isinstance(operator, str) or operator not in _OPERATORS:
        allowed = ", ".join([*_OPERATORS, "in", "not in"])
        raise ConfigError(
            f"filters= has the operator {operator!r} in {item!r}{_meant(operator)}; allowed: {allowed}"
        )
    if _is_collection(value):
        raise ConfigError(
            f"filters= compares {name!r} with the collection {value!r}; use the operator 'in'"
        )
    return predicate.compare(_OPERATORS[operator], target, _value(name, value))


def _meant(operator: Any) -> str:
    if not isinstance(operator, str):
        return ""
    meant = _OTHER_SPELLINGS.get(operator)
    if operator[:1].isalpha():
        meant = nearest_name(operator, ["in", "not in"])
    return f"; did you mean {meant!r}?" if meant else ""


def _is_collection(value: Any) -> bool:
    # Of a number, the abstract classes would say the same, but only after a look at all that are known.
    if isinstance(value, (str, int, float, bytes, bytearray, memoryview, np.generic)) or hasattr(
        value, "as_py"
    ):
        return False
    return isinstance(value, (Collection, np.ndarray)) or hasattr(value, "__arrow_c_array__")


def _members(name: str, operator: str, value: Any) -> list[Term]:
    if not _is_collection(value) or isinstance(value, Mapping):
        raise ConfigError(
            f"filters= has {operator!r} on {name!r} with {value!r}; expected a list, tuple or set of values"
        )
    if isinstance(value, np.ndarray):
        value = value.ravel()
    terms = [_value(name, member) for member in value]
    kinds = {term.kind for term in terms} - {"null"}
    if len(kinds) > 1 and not kinds <= {"int", "float"}:
        raise ConfigError(
            f"filters= has {operator!r} on {name!r} with values of several types ({', '.join(sorted(kinds))}); "
            "give values of one type"
        )
    if not isinstance(value, (Sequence, np.ndarray)):
        # A set of strings comes in another order in every process, but the text must be the same on all ranks.
        terms.sort(key=lambda term: term.sql)
    return terms


def _value(name: str, value: Any) -> Term:
    """A literal of a Python, numpy, pandas or pyarrow value, typed as pyarrow would."""
    if hasattr(value, "as_py"):
        return scalar_to_term(value)
    # pandas' own missing values and its nanosecond timestamps, without importing pandas.
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return predicate.literal("n", None)
    if type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_datetime64"):
        zoned = value.tzinfo is not None
        return _numpy_time(name, value.to_datetime64(), "UTC" if zoned else "")
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _numpy_time(name, value)
    if isinstance(value, (bool, np.bool_)):
        return predicate.literal("b", bool(value))
    if isinstance(value, (int, np.integer)):
        if not -(2**63) <= value < 2**64:
            raise QueryError(f"filters= compares {name!r} with {value}, which is beyond 64 bits")
        return predicate.literal("l" if value < 2**63 else "L", int(value))
    if isinstance(value, np.floating):
        return predicate.literal("f" if value.itemsize <= 4 else "g", float(value))
    if isinstance(value, float):
        return predicate.literal("g", value)
    if isinstance(value, str):
        return predicate.literal("u", str(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return predicate.literal("z", bytes(value))
    if isinstance(value, Decimal):
        return predicate.literal(predicate.decimal_format(value), value)
    return _python_time(name, value)


def _python_time(name: str, value: Any) -> Term:
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return predicate.literal("tsu:", (value - _EPOCH) // _MICROSECOND)
        instant = (value - _EPOCH.replace(tzinfo=dt.UTC)) // _MICROSECOND
        return predicate.literal("tsu:UTC", instant)
    if isinstance(value, dt.date):
        return predicate.literal("tdD", (value - _EPOCH.date()).days)
    if isinstance(value, dt.time) and value.tzinfo is None:
        since_midnight = dt.datetime.combine(_EPOCH, value) - _EPOCH
        return predicate.literal("ttu", since_midnight // _MICROSECOND)
    if isinstance(value, dt.timedelta):
        return predicate.literal("tDu", value // _MICROSECOND)
    raise ConfigError(
        f"filters= compares {name!r} with {value!r}, a {type(value).__name__}; expected None or a bool, int, "
        "float, str, bytes, Decimal, date, time, datetime, timedelta, numpy or pyarrow scalar"
    )


def _numpy_time(name: str, value: np.datetime64 | np.timedelta64, zone: str = "") -> Term:
    if np.isnat(value):
        return predicate.literal("n", None)
    unit, step = np.datetime_data(value.dtype)
    is_moment = isinstance(value, np.datetime64)
    if is_moment and unit in ("Y", "M", "W", "D"):
        return predicate.literal("tdD", int(value.astype("datetime64[D]").astype(np.int64)))
    code = {"s": "s", "ms": "m", "us": "u", "ns": "n"}.get(unit)
    if code is None or step != 1:
        raise QueryError(
            f"filters= compares {name!r} with {value!r} in the unit {step}{unit}; convert it to s, ms, us or ns"
        )
    format = f"ts{code}:{zone}" if is_moment else f"tD{code}"
    return predicate.literal(format, int(value.astype(np.int64)))
