"""Finds a SQL predicate that tells some rows of a table from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery.errors import ConfigError
from tensorquery.sql.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Told", "check_comparable", "tell_apart"]

_MOST_VALUES = 8
"""Values of one column that a predicate lists."""
_MOST_TERMS = 4
"""Terms that a predicate joins by AND."""


class Told(NamedTuple):
    """A predicate, and how well it tells rows apart."""

    predicate: str
    """SQL that is true of all the rows that are looked for."""
    others: int
    """Other rows of which it is true, too."""


def check_comparable(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Check that a predicate may be over these columns.

    Raises:
        ConfigError: One has a type that no literal stands for; names it.
    """
    types = import_pyarrow().types
    for name in columns:
        kind = _value_type(schema.field(name).type)
        allowed = (
            types.is_integer, types.is_floating, types.is_boolean, types.is_date, types.is_timestamp, types.is_decimal,
            types.is_string, types.is_large_string, types.is_string_view,
        )  # fmt: skip
        if not any(is_kind(kind) for is_kind in allowed):
            raise ConfigError(
                f"column {name!r} has type {schema.field(name).type}, of which no predicate is looked for; columns= may name "
                "numbers, texts, booleans, dates and timestamps"
            )


def tell_apart(table: pa.Table, wanted: Sequence[bool]) -> Told | None:
    """Find a predicate over the columns of a table that is true of all wanted rows, and of as few others as may be.

    It has up to four terms: a value, a list of up to eight, a bound or a range of one column. Each is taken where it leaves
    out most of the others; earlier columns and simpler terms come first where two leave out as many.

    Args:
        table: The rows, of columns that `check_comparable` allows.
        wanted: By row, whether it is looked for; at least one is.

    Returns:
        The predicate; None where no term leaves out any other row.
    """
    pyarrow = import_pyarrow()
    mask = pyarrow.array(wanted, pyarrow.bool_())
    kept = table.filter(mask)
    terms = [term for name in table.column_names for term in _terms(name, kept[name])]
    others = table.filter(pyarrow.compute.invert(mask))
    if not terms:
        return None
    matching = _evaluated(others, terms)
    left, chosen = set(range(others.num_rows)), list[str]()
    while left and len(chosen) < _MOST_TERMS:
        sizes = [len(left & rows) for rows in matching]
        best = min(range(len(terms)), key=sizes.__getitem__)
        if sizes[best] == len(left):
            break
        left &= matching[best]
        chosen.append(terms[best])
    if not chosen and others.num_rows:
        return None
    return Told(" AND ".join(chosen or terms[:1]), len(left))


def _evaluated(rows: pa.Table, terms: Sequence[str]) -> list[set[int]]:
    """By term, the numbers of the rows of which it is true."""
    session = Session()
    session.register_table("rows", rows)
    listed = ", ".join(f'coalesce({term}, FALSE) AS "{at}"' for at, term in enumerate(terms))
    found = session.sql(f"SELECT {listed} FROM rows").to_arrow()
    return [
        {at for at, is_true in enumerate(column.to_pylist()) if is_true} for column in found.columns
    ]


def _terms(name: str, column: pa.ChunkedArray) -> list[str]:
    """Terms over one column that are true of all of its rows, simple ones first."""
    types, quoted = import_pyarrow().types, _core.quote_identifier(name)
    kind = _value_type(column.type)
    values = {value for value in column.to_pylist() if value is not None}
    nulls = column.null_count > 0
    not_numbers = {value for value in values if value != value}
    if not values:
        return [f"{quoted} IS NULL"]
    if not_numbers:
        # Beside NaN other numbers have no bound.
        return [f"isnan({quoted})"] if not nulls and not_numbers == values else []
    found = []
    literals = [_literal(value, kind) for value in sorted(values)]
    if len(literals) == 1:
        found.append(f"{quoted} = {literals[0]}")
    else:
        if not types.is_boolean(kind):
            found += [
                f"{quoted} >= {literals[0]}",
                f"{quoted} <= {literals[-1]}",
                f"{quoted} BETWEEN {literals[0]} AND {literals[-1]}",
            ]
        if len(literals) <= _MOST_VALUES and not types.is_boolean(kind):
            found.append(f"{quoted} IN ({', '.join(literals)})")
    return [f"({quoted} IS NULL OR {term})" for term in found] if nulls else found


def _value_type(kind: Any) -> Any:
    """The type of the values, of which a dictionary has indices."""
    return kind.value_type if import_pyarrow().types.is_dictionary(kind) else kind


def _literal(value: Any, kind: Any) -> str:
    """A value as SQL."""
    types = import_pyarrow().types
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if types.is_floating(kind) and value in (float("inf"), -float("inf")):
        return f"CAST('{value}' AS DOUBLE)"
    if types.is_integer(kind) or types.is_floating(kind):
        return repr(value)
    # Dates, times and decimals are cast from text, so that no digit is lost.
    return f"arrow_cast('{value}', '{_arrow_name(kind)}')"


def _arrow_name(kind: Any) -> str:
    """A type as `arrow_cast` spells it."""
    types = import_pyarrow().types
    if types.is_date(kind):
        return "Date32" if types.is_date32(kind) else "Date64"
    if types.is_decimal(kind):
        return f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    unit = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}[kind.unit]
    zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
    return f"Timestamp({unit}, {zone})"
