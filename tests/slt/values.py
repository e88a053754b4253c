"""Values of Arrow tables and of SQLite in one form that can be compared and written.

A value is None, a bool, an int, a Decimal, a float, a str, bytes, or one of the kinds below: those that engines write in different
Arrow types and that mean the same.
"""

import datetime
import decimal
from typing import NamedTuple

import pyarrow as pa

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Moment(NamedTuple):
    """Nanoseconds since 1970-01-01 (in UTC where zoned); a date is its midnight."""

    nanoseconds: int
    zoned: bool


class Clock(NamedTuple):
    """A time of day, in nanoseconds."""

    nanoseconds: int


class Interval(NamedTuple):
    """Months, days and nanoseconds; a duration has nanoseconds only."""

    months: int
    days: int
    nanoseconds: int


class Row(NamedTuple):
    """A struct: its fields in their order."""

    names: tuple
    values: tuple


class Entries(NamedTuple):
    """A map: pairs of key and value in their order."""

    pairs: tuple


def rows_of(table):
    """The rows of a table, as tuples of values; columns may share a name."""
    columns = [column_of(column) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def column_of(column):
    """The values of one Arrow column."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in _values(chunk)]


def _values(array):
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return [None if one is None else str(one) for one in array.to_pylist()]
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_date(kind):
        day = 86_400 * 10**9 if pa.types.is_date32(kind) else 10**6
        whole = array.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        return [None if one is None else Moment(one * day, False) for one in whole.to_pylist()]
    if pa.types.is_timestamp(kind):
        unit, zoned = _NANOSECONDS[kind.unit], kind.tz is not None
        whole = array.view(pa.int64()).to_pylist()
        return [None if one is None else Moment(one * unit, zoned) for one in whole]
    if pa.types.is_time(kind):
        whole = array.view(pa.int32() if pa.types.is_time32(kind) else pa.int64()).to_pylist()
        return [None if one is None else Clock(one * _NANOSECONDS[kind.unit]) for one in whole]
    if pa.types.is_duration(kind):
        whole = array.view(pa.int64()).to_pylist()
        unit = _NANOSECONDS[kind.unit]
        return [None if one is None else Interval(0, 0, one * unit) for one in whole]
    if pa.types.is_interval(kind):
        return [None if one is None else Interval(*one) for one in array.to_pylist()]
    if pa.types.is_map(kind):
        return _nested(array, lambda part: Entries(tuple(zip(*part, strict=True))), 2)
    if pa.types.is_struct(kind):
        names = tuple(field.name.lower() for field in kind)
        fields = [_values(part) for part in array.flatten()]
        rows = zip(*fields, strict=True) if fields else [()] * len(array)
        valid = array.is_valid().to_pylist()
        return [Row(names, row) if ok else None for row, ok in zip(rows, valid, strict=True)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _nested(array, tuple, 1)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _values(array.cast(pa.large_list(kind.value_type)))
    return array.to_pylist()


def _nested(array, make, parts):
    """The values of a list or map: `parts` is 2 for a map, whose keys and items are separate."""
    found = []
    for index in range(len(array)):
        scalar = array[index]
        if not scalar.is_valid:
            found.append(None)
        elif parts == 2:
            entries = scalar.values
            keys, items = entries.field(0), entries.field(1)
            found.append(make((_values(keys), _values(items))))
        else:
            found.append(make(_values(scalar.values)))
    return found


def text_of(value):
    """A value as our own `.slt` files write it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case "":
            return "(empty)"
        case str():
            return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
        case bytes():
            return "\\x" + value.hex()
        case float():
            return _float(value)
        case decimal.Decimal():
            return format(value, "f")
        case Moment():
            return _moment(value)
        case Clock():
            return _clock(value.nanoseconds)
        case Interval():
            return f"{value.months} mons {value.days} days {value.nanoseconds} ns"
        case Row():
            fields = zip(value.names, value.values, strict=True)
            return "{" + ", ".join(f"{name}: {text_of(one)}" for name, one in fields) + "}"
        case Entries():
            return "{" + ", ".join(f"{text_of(k)}={text_of(v)}" for k, v in value.pairs) + "}"
        case tuple():
            return "[" + ", ".join(map(text_of, value)) + "]"
    return str(value)


def _float(value):
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _clock(nanoseconds):
    seconds, rest = divmod(nanoseconds, 10**9)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{rest:09}".rstrip("0") if rest else "")


def _moment(value):
    days, rest = divmod(value.nanoseconds, 86_400 * 10**9)
    try:
        day = str(datetime.date(1970, 1, 1) + datetime.timedelta(days))
    except OverflowError:
        day = f"day {days}"
    if not rest and not value.zoned:
        return day
    return f"{day} {_clock(rest)}" + ("+00" if value.zoned else "")
