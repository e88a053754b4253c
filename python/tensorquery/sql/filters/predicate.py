"""SQL predicates for DataFusion that keep the rows pyarrow would keep.

`filters` and the reading of expressions build on these few functions, so both forms mean the same. Where SQL and
pyarrow differ, the SQL here follows pyarrow:

| case | pyarrow | plain SQL in DataFusion |
|---|---|---|
| NaN compared | false, but `!=` true | NaN is the largest value and equals itself |
| -0.0 and 0.0 | equal, but not in `isin` | -0.0 < 0.0; here they are equal, in `isin` too |
| null in `isin` | false, or true if the set holds null | null |
| field of a null struct | null | whatever bytes lie below |

Names and strings are quoted here and nowhere else, so no name or value can become SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from tensorquery._util.arrow_c import Field
from tensorquery._util.options import check_text, nearest_name
from tensorquery.errors import QueryError

__all__ = [
    "Term",
    "arithmetic",
    "cast",
    "column",
    "combine",
    "compare",
    "decimal_format",
    "is_in",
    "is_nan",
    "is_null",
    "is_valid",
    "kind_of",
    "literal",
    "negation",
    "text_match",
]

# How tightly SQL text binds; looser text is put in parentheses where a tighter one is needed.
_ATOM, _COMPARISON, _AND, _OR = range(4)

_NUMERIC = ("int", "float", "decimal")
_NAMES = {
    "b": "Boolean",
    "c": "Int8",
    "C": "UInt8",
    "s": "Int16",
    "S": "UInt16",
    "i": "Int32",
    "I": "UInt32",
    "l": "Int64",
    "L": "UInt64",
    "e": "Float16",
    "f": "Float32",
    "g": "Float64",
    "tdD": "Date32",
    "tdm": "Date64",
    "tts": "Time32(Second)",
    "ttm": "Time32(Millisecond)",
    "ttu": "Time64(Microsecond)",
    "ttn": "Time64(Nanosecond)",
}
_TIME_UNITS = {"s": "Second", "m": "Millisecond", "u": "Microsecond", "n": "Nanosecond"}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_SQL_FORM = 'write it in SQL instead, for example filters="a > 1 AND b IS NOT NULL"'


@dataclass(frozen=True)
class Term:
    """A piece of SQL with the known facts about its value.

    Attributes:
        sql: The text.
        kind: int, float, decimal, string, binary, bool, date, timestamp, time, duration, null, other; or
            "unknown" for a column without a schema.
        format: The Arrow type as the C data interface spells it; "" where not known.
        level: How tightly the text binds.
        value: A literal's Python value; None for anything else and for null.
        is_literal: Whether the text is a constant.
    """

    sql: str
    kind: str
    format: str = ""
    level: int = _ATOM
    value: Any = None
    is_literal: bool = False

    @property
    def may_be_float(self) -> bool:
        """Whether the value can be NaN or a signed zero, as far as known."""
        return self.kind in ("float", "unknown")

    def within(self, level: int) -> str:
        """The text, in parentheses where it binds looser than `level`."""
        return f"({self.sql})" if self.level > level else self.sql


_NULL = Term("CAST(NULL AS BOOLEAN)", "bool", "b")


def kind_of(format: str) -> str:
    """The kind of a type that the C data interface spells `format`."""
    if format == "n":
        return "null"
    if format == "b":
        return "bool"
    if format in ("e", "f", "g"):
        return "float"
    if format in _NAMES and len(format) == 1:
        return "int"
    if format in ("u", "U", "vu"):
        return "string"
    if format in ("z", "Z", "vz") or format.startswith("w:"):
        return "binary"
    if format.startswith("d:"):
        return "decimal"
    prefixes = {"td": "date", "tt": "time", "ts": "timestamp", "tD": "duration"}
    return prefixes.get(format[:2], "other")


def type_name(format: str) -> str | None:
    """The type's name for DataFusion's `arrow_cast`, or None where no predicate needs it."""
    kind = kind_of(format)
    if kind == "timestamp":
        # A zone only says how to print an instant, so every instant may be written in UTC.
        zone = 'Some("UTC")' if _has_zone(format) else "None"
        return f"Timestamp({_TIME_UNITS[format[2]]}, {zone})"
    if kind == "duration":
        return f"Duration({_TIME_UNITS[format[2]]})"
    if kind == "decimal":
        precision, scale, bits = [*format[2:].split(","), "128"][:3]
        return f"Decimal{bits}({precision}, {scale})"
    return _NAMES.get(format)


def _has_zone(format: str) -> bool:
    return format.startswith("ts") and not format.endswith(":")


def quote_name(name: str) -> str:
    """A column name as SQL, its case kept."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """A string as SQL; a backslash means itself."""
    return "'" + text.replace("'", "''") + "'"


def column(path: Sequence[str], columns: Mapping[str, Field] | None) -> Term:
    """A column, or a field inside of struct columns.

    Args:
        path: The column's name, then the names of nested fields.
        columns: The table's columns by name; None where they are not known.

    Raises:
        QueryError: No such column or nested field; names the nearest one.
    """
    sql, field = quote_name(path[0]), None
    if columns is not None:
        field = columns.get(path[0])
        if field is None:
            raise QueryError(_no_such("column", path[0], columns))
    for depth, name in enumerate(path[1:], start=1):
        if field is not None:
            child = field.child(name) if field.format == "+s" else None
            if child is None:
                names = [c.name for c in field.children] if field.format == "+s" else []
                raise QueryError(_no_such("field", ".".join(path[: depth + 1]), names))
            field = child
        # DataFusion reads a nested field without asking whether the struct around it is null.
        sql = f"CASE WHEN {sql} IS NOT NULL THEN {_nested(sql, name)} END"
    return Term(sql, kind_of(field.format), field.format) if field else Term(sql, "unknown")


def _nested(parent: str, name: str) -> str:
    base = f"({parent})" if parent.startswith("CASE") else parent
    return f"{base}[{quote_text(name)}]"


def _no_such(what: str, name: str, names: Iterable[str]) -> str:
    names = list(names)
    nearest = nearest_name(name.rpartition(".")[2], names)
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    return f"filters= names the {what} {name!r}, which does not exist{hint} (there are: {', '.join(names[:20])})"


def literal(format: str, value: Any) -> Term:
    """A constant of the Arrow type `format`.

    Args:
        format: The type as the C data interface spells it.
        value: A bool, int, float, Decimal, str or bytes; for a date, time, timestamp or duration the
            integer that Arrow stores. None is null.

    Raises:
        QueryError: No SQL constant exists for the type.
        ConfigError: A string is no text of UTF-8.
    """
    kind = kind_of(format)
    if value is None:
        return Term("NULL", "null", "n", is_literal=True)
    name = type_name(format)
    if kind == "bool":
        sql = "TRUE" if value else "FALSE"
    elif kind == "int":
        sql = str(int(value))
    elif kind == "float":
        value = float(value)
        sql = _float_sql(value)
    elif kind == "string":
        sql = quote_text(check_text("a value in filters=", str(value)))
    elif kind == "binary":
        sql = f"X'{bytes(value).hex()}'"
    elif kind == "decimal":
        sql = f"arrow_cast('{value:f}', '{name}')"
    elif kind in ("date", "time", "timestamp", "duration") and name:
        sql = f"arrow_cast({int(value)}, '{name}')"
    else:
        raise QueryError(f"filters= holds a constant of Arrow type {format!r}; {_SQL_FORM}")
    return Term(sql, kind, format, value=value, is_literal=True)


def _float_sql(value: float) -> str:
    if value != value:
        return "CAST('NaN' AS DOUBLE)"
    if value in (float("inf"), float("-inf")):
        return f"CAST('{'-' if value < 0 else ''}inf' AS DOUBLE)"
    # With an exponent the text is a 64-bit float in every dialect; without one it may be a decimal.
    text = repr(value)
    return text if "e" in text else f"{text}e0"


def combine(operator: str, terms: Sequence[Term]) -> Term:
    """Join predicates by AND or OR, null being unknown in both SQL and pyarrow (Kleene logic)."""
    for term in terms:
        _expect_kinds(operator, term, ("bool", "null"))
    if len(terms) == 1:
        return terms[0]
    level = _AND if operator == "AND" else _OR
    return Term(f" {operator} ".join(term.within(level) for term in terms), "bool", "b", level)


def negation(term: Term) -> Term:
    """NOT; null stays null."""
    _expect_kinds("~", term, ("bool", "null"))
    return Term(f"NOT {term.within(_ATOM)}", "bool", "b", _COMPARISON)


def is_null(term: Term, *, nan_is_null: bool = False) -> Term:
    """IS NULL, and on request NaN too."""
    nothing = Term(f"{term.within(_ATOM)} IS NULL", "bool", "b", _COMPARISON)
    if not nan_is_null or not term.may_be_float:
        return nothing
    # isnan of null is null, and the first side has then decided.
    return combine("OR", [nothing, is_nan(term)])


def is_valid(term: Term) -> Term:
    """IS NOT NULL."""
    return Term(f"{term.within(_ATOM)} IS NOT NULL", "bool", "b", _COMPARISON)


def is_nan(term: Term) -> Term:
    """Whether a number is NaN; null of null."""
    _expect_kinds("is_nan", term, _NUMERIC)
    return Term(f"isnan({term.sql})", "bool", "b")


def text_match(function: str, term: Term, pattern: str) -> Term:
    """One of starts_with, ends_with, contains or LIKE, case-sensitive.

    Raises:
        QueryError: The column is no string, or a LIKE pattern has a backslash before an ordinary
            character, which no two engines read alike.
    """
    _expect_kinds(function, term, ("string",))
    if function != "LIKE":
        return Term(f"{function}({term.sql}, {quote_text(pattern)})", "bool", "b")
    rest = pattern.replace("\\\\", "").replace("\\%", "").replace("\\_", "")
    if "\\" in rest:
        raise QueryError(
            f"match_like pattern {pattern!r}: a backslash must come before %, _ or another backslash"
        )
    sql = f"{term.within(_ATOM)} LIKE {quote_text(pattern)} ESCAPE '\\'"
    return Term(sql, "bool", "b", _COMPARISON)


def compare(operator: str, left: Term, right: Term) -> Term:
    """Compare by one of =, <>, <, <=, >, >=.

    Raises:
        QueryError: The two sides are of types that do not compare, such as a string and a number.
    """
    if left.is_literal and not right.is_literal:
        left, right, operator = right, left, _MIRRORED[operator]
    if "null" in (left.kind, right.kind):
        return _NULL
    _expect_comparable(left, right)
    if "float" in (left.kind, right.kind):
        left, right = _without_decimal(left), _without_decimal(right)
    left, right = _as_timestamp(left, right), _as_timestamp(right, left)
    plain = Term(f"{left.within(_ATOM)} {operator} {right.within(_ATOM)}", "bool", "b", _COMPARISON)
    if right.is_literal:
        # An int beside a float constant becomes a float in SQL, and then meets NaN and -0.0 too.
        if right.kind == "float" or (right.kind in _NUMERIC and left.may_be_float):
            return _compare_float_with_literal(operator, left, right, plain)
        return plain
    if "float" in (left.kind, right.kind):
        return _compare_floats(operator, left, right)
    return plain


def _without_decimal(term: Term) -> Term:
    """A decimal beside a float becomes a float, as in pyarrow; SQL would make the float a decimal."""
    if term.kind != "decimal":
        return term
    if term.is_literal:
        return literal("g", float(term.value))
    return Term(f"CAST({term.sql} AS DOUBLE)", "float", "g")


def _as_timestamp(term: Term, other: Term) -> Term:
    """A date beside a timestamp becomes one of the same unit; SQL would make both nanoseconds, and overflow."""
    if term.kind != "date" or other.kind != "timestamp":
        return term
    return cast(term, other.format)


def _compare_float_with_literal(operator: str, left: Term, right: Term, plain: Term) -> Term:
    sql = left.within(_ATOM)
    if right.value != right.value:
        outcome = "TRUE" if operator == "<>" else "FALSE"
        return Term(f"CASE WHEN {sql} IS NOT NULL THEN {outcome} END", "bool", "b")
    if right.value == 0:
        # Both zeros must fall on the same side.
        text = {
            "=": "BETWEEN -0.0e0 AND 0.0e0",
            "<>": "NOT BETWEEN -0.0e0 AND 0.0e0",
            "<": "< -0.0e0",
            "<=": "<= 0.0e0",
            ">": "> 0.0e0",
            ">=": ">= -0.0e0",
        }[operator]
        plain = replace(plain, sql=f"{sql} {text}")
    if operator not in (">", ">=") or not left.may_be_float:
        # NaN sorts last: it is neither below nor equal to a number.
        return plain
    return Term(f"{plain.sql} AND NOT isnan({left.sql})", "bool", "b", _AND)


def _compare_floats(operator: str, left: Term, right: Term) -> Term:
    sides = [left, right]
    nans = " OR ".join(f"isnan({side.sql})" for side in sides if side.kind == "float")
    # Adding 0.0 turns -0.0 into 0.0 and changes nothing else.
    a, b = (
        f"({side.within(_ATOM)} + 0.0e0)" if side.kind == "float" else side.within(_ATOM)
        for side in sides
    )
    if operator == "<>":
        outcome = f"{a} <> {b} OR {nans}"
    else:
        outcome = f"{a} {operator} {b} AND NOT ({nans})"
    known = " AND ".join(f"{side.within(_ATOM)} IS NOT NULL" for side in sides)
    return Term(f"CASE WHEN {known} THEN {outcome} END", "bool", "b")


def is_in(term: Term, values: Sequence[Term], *, skip_nulls: bool = False) -> Term:
    """Whether a value is one of a set; never null.

    Args:
        term: The value.
        values: Literals, null among them or not.
        skip_nulls: Whether a null matches nothing, even a null in `values`.
    """
    known = [value for value in values if value.kind != "null"]
    nullable = len(known) < len(values) and not skip_nulls
    for value in known:
        _expect_comparable(term, value)
    if known:
        term = _as_timestamp(term, known[0])
    known = [_as_timestamp(value, term) for value in known]
    # A constant keeps its own type, as in `compare`: 1.1 is equal to no float32.
    texts = [(_without_decimal(v) if term.kind == "float" else v).sql for v in known]
    # A set without repeats: the text is part of the query's fingerprint.
    listed = ", ".join(dict.fromkeys(texts))
    sql = term.within(_ATOM)
    if not known:
        return Term(f"{sql} IS NULL", "bool", "b", _COMPARISON) if nullable else literal("b", False)
    if nullable:
        return Term(f"{sql} IS NULL OR {sql} IN ({listed})", "bool", "b", _OR)
    return Term(f"{sql} IS NOT NULL AND {sql} IN ({listed})", "bool", "b", _AND)


def arithmetic(operator: str, left: Term, right: Term) -> Term:
    """Add, subtract, multiply or divide numbers; integers divide towards zero, as in pyarrow.

    Raises:
        QueryError: A side is no int or float: decimals have other scale rules in pyarrow, and dates other units.
    """
    for side in (left, right):
        _expect_kinds(operator, side, ("int", "float", "null"))
    texts = [_operand(side).within(_ATOM) for side in (left, right)]
    kinds = {left.kind, right.kind}
    if "null" in kinds:
        return literal("n", None)
    # A value that may be a float counts as one: the guards against NaN do no harm to integers.
    kind = "int" if kinds == {"int"} else "float"
    return Term(f"{texts[0]} {operator} {texts[1]}", kind, level=_COMPARISON)


def _operand(term: Term) -> Term:
    """A float constant that 32 bits hold exactly is a float32 to pyarrow, and so is an int column beside it."""
    if term.is_literal and term.kind == "float" and _fits_float32(term.value):
        return replace(term, sql=f"CAST({term.sql} AS REAL)")
    return term


def _fits_float32(value: float) -> bool:
    with np.errstate(over="ignore"):
        narrow = float(np.float32(value))
    return narrow == value or value != value


def cast(term: Term, format: str) -> Term:
    """A safe cast between numbers, or between dates and timestamps.

    Raises:
        QueryError: pyarrow and SQL are not known to agree on this cast.
    """
    kind, name = kind_of(format), type_name(format)
    known = {
        "int": ("int", "float", "decimal", "string", "unknown"),
        "float": ("int", "float", "decimal", "string", "unknown"),
        "decimal": ("int", "decimal"),
        "date": ("date", "timestamp"),
        "timestamp": ("date", "timestamp"),
        "bool": ("bool",),
    }.get(kind, ())
    # Between zones SQL converts to local time, and pyarrow to UTC.
    zoned = _has_zone(term.format) != _has_zone(format) or (_has_zone(format) and kind == "date")
    if name is None or term.kind not in known or (kind in ("date", "timestamp") and zoned):
        raise QueryError(
            f"cast from {term.kind} ({term.format or 'type not known'}) to {name or format!r} in a pyarrow "
            f"expression is not supported; {_SQL_FORM}"
        )
    return Term(f"arrow_cast({term.sql}, {quote_text(name)})", kind, format)


def _expect_kinds(what: str, term: Term, kinds: Sequence[str]) -> None:
    if term.kind not in (*kinds, "unknown"):
        raise QueryError(
            f"filters=: {what} needs {' or '.join(k for k in kinds if k != 'null')}, but {term.sql} is "
            f"{term.kind}; {_SQL_FORM}"
        )


def _expect_comparable(left: Term, right: Term) -> None:
    families = (_NUMERIC, ("string", "binary"), ("date", "timestamp"))
    kinds = {left.kind, right.kind} - {"unknown"}
    fits = len(kinds) < 2 or any(kinds <= set(family) for family in families)
    # A string constant beside a date or time is read as one, as everywhere in SQL.
    if any(side.is_literal and side.kind == "string" for side in (left, right)):
        fits = fits or bool(kinds & {"date", "timestamp", "time"})
    if not fits or "other" in kinds:
        raise QueryError(
            f"filters= compares {left.sql} ({left.kind}) with {right.sql} ({right.kind}); give a value "
            "of the column's type"
        )
    if left.kind == right.kind == "timestamp" and _has_zone(left.format) != _has_zone(right.format):
        raise QueryError(
            f"filters= compares {left.sql} with {right.sql}, but only one has a time zone; give a "
            "datetime with tzinfo for a column with a zone, and one without for a column without"
        )


def decimal_format(value: Decimal) -> str:
    """The narrowest Arrow decimal type of a finite decimal.

    Raises:
        QueryError: Not finite, or more than 76 digits.
    """
    if not value.is_finite():
        raise QueryError(
            f"filters= holds the decimal {value}; only finite decimals have an Arrow type"
        )
    text = f"{value:f}".lstrip("-")
    scale = len(text.partition(".")[2])
    precision = max(len(text.replace(".", "").lstrip("0")), scale, 1)
    if precision > 76:
        raise QueryError(f"filters= holds a decimal of {precision} digits; Arrow has at most 76")
    return f"d:{precision},{scale}" + ("" if precision <= 38 else ",256")
