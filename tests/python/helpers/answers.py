"""Two engines' answers to one query, compared as multisets of rows or in order.

Types are brought together, and no further than this:

- integers of any width and decimals of any scale are exact numbers: 2 equals 2.00, and nothing is rounded;
- a float equals another number within one part in 10^9 (or 10^-9 near zero). Against a decimal it may be off by one unit of
  the decimal's last place more, since engines that divide decimals as decimals cut the quotient there;
- a date is the timestamp of its midnight; timestamps are compared in microseconds, without their zone;
- times of a day are compared in nanoseconds;
- text, bytes and booleans are exact, whatever the width of their offsets; lists and structs hold what is compared alike.

A null equals a null, a NaN a NaN, and neither anything else. A chain of floats each within the tolerance of the next counts as one
value: so rounding noise cannot change how rows are sorted, and equality is the same from both sides.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RELATIVE = 1e-9
ABSOLUTE = 1e-9

NULL = -1

_WIDEST = 38
"""Digits of a decimal128."""


def assert_same_answer(actual, expected, *, ordered=False, shown=3):
    """Two tables have the same columns and the same rows.

    Args:
        actual: The `pyarrow.Table` in question.
        expected: What it should be.
        ordered: Rows are in the same order, too; otherwise they are compared as multisets.
        shown: Rows that a message shows of each side.

    Raises:
        AssertionError: They differ; with the first rows that only one of them has, or the first place that differs.
    """
    assert actual.column_names == expected.column_names, (
        f"columns {actual.column_names}, expected {expected.column_names}"
    )
    assert len(set(expected.column_names)) == expected.num_columns, expected.column_names
    ids, split = _row_ids(actual, expected)
    mine, theirs = ids[:split], ids[split:]
    counts = np.bincount(mine, minlength=ids.max(initial=-1) + 1) - np.bincount(
        theirs, minlength=ids.max(initial=-1) + 1
    )
    surplus = _rows(actual, mine, counts, shown)
    missing = _rows(expected, theirs, -counts, shown)
    if surplus or missing:
        raise AssertionError(
            f"{actual.num_rows} rows, expected {expected.num_rows}; "
            f"{counts[counts > 0].sum()} too many, such as {surplus}; "
            f"{-counts[counts < 0].sum()} missing, such as {missing}"
        )
    if ordered and (mine != theirs).any():
        place = int(np.argmax(mine != theirs))
        raise AssertionError(
            f"the same rows in another order: row {place} is {actual.slice(place, 1).to_pylist()}, "
            f"expected {expected.slice(place, 1).to_pylist()}"
        )


def _rows(table, ids, counts, shown):
    """The first rows of `table` whose id is in surplus."""
    places = np.flatnonzero(counts[ids] > 0)[:shown]
    return [row for place in places for row in table.slice(place, 1).to_pylist()]


def _row_ids(actual, expected):
    """A number per row of both tables, one after the other, equal for equal rows; and where the second one begins."""
    split = actual.num_rows
    ids = np.zeros(split + expected.num_rows, np.int64)
    for name in expected.column_names:
        try:
            column = _ids(_joined(actual[name]), _joined(expected[name]))
        except (AssertionError, pa.ArrowInvalid) as error:
            raise AssertionError(f"column {name!r}: {error}") from error
        ids = _together(ids, column)
    return ids, split


def _joined(column):
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _together(first, second):
    """One number per place, equal where both are; from 0."""
    # Both are less than the number of rows, so that their product is far from 2^63.
    width = second.max(initial=NULL) + 1 - NULL
    pairs = (first - NULL) * width + (second - NULL)
    return pa.array(pairs).dictionary_encode().indices.to_numpy().astype(np.int64)


def _ids(mine, theirs):
    """A number per value of both arrays, one after the other: equal for equal values, `NULL` for nulls."""
    mine, theirs = _plain(mine), _plain(theirs)
    kinds = _kind(mine.type), _kind(theirs.type)
    if pa.types.is_null(mine.type):
        mine = mine.cast(theirs.type)
    elif pa.types.is_null(theirs.type):
        theirs = theirs.cast(mine.type)
    elif "float" in kinds and set(kinds) <= {"float", "number"}:
        return _float_ids(mine, theirs)
    else:
        assert kinds[0] == kinds[1], f"{mine.type} is not {theirs.type}"
    match _kind(mine.type):
        case "list":
            return _list_ids(mine, theirs)
        case "struct":
            return _struct_ids(mine, theirs)
        case "float":
            return _float_ids(mine, theirs)
        case "number":
            scale = max(_scale(mine.type), _scale(theirs.type))
            kind = pa.decimal128(_WIDEST, scale)
            return _exact_ids(_as_decimal(mine, kind), _as_decimal(theirs, kind))
        case "text":
            return _exact_ids(mine.cast(pa.large_string()), theirs.cast(pa.large_string()))
        case "bytes":
            return _exact_ids(mine.cast(pa.large_binary()), theirs.cast(pa.large_binary()))
        case "moment":
            kind = pa.timestamp("us")
            return _exact_ids(mine.cast(kind), theirs.cast(kind))
        case "clock":
            kind = pa.time64("ns")
            return _exact_ids(mine.cast(kind), theirs.cast(kind))
        case _:
            assert mine.type == theirs.type, f"{mine.type} is not {theirs.type}"
            return _exact_ids(mine, theirs)


def _plain(array):
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    # Fixed-size and view lists have other offsets.
    if pa.types.is_fixed_size_list(array.type) or pa.types.is_list_view(array.type):
        return array.cast(pa.large_list(array.type.value_type))
    return array


def _kind(kind):
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind):
        return "number"
    if types.is_floating(kind):
        return "float"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "moment"
    if types.is_time(kind):
        return "clock"
    if types.is_list(kind) or types.is_large_list(kind):
        return "list"
    if types.is_struct(kind):
        return "struct"
    return str(kind)


def _scale(kind):
    return kind.scale if pa.types.is_decimal(kind) else 0


def _as_decimal(array, kind):
    if pa.types.is_integer(array.type):
        # Arrow has no cast from integers to a decimal that leaves fewer digits than the integer's type may need.
        array = array.cast(pa.decimal128(20, 0))
    return array.cast(kind)


def _exact_ids(mine, theirs):
    both = pa.concat_arrays([mine, theirs]).dictionary_encode(null_encoding="mask")
    return both.indices.fill_null(NULL).to_numpy(zero_copy_only=False).astype(np.int64)


def _float_ids(mine, theirs):
    """Numbers that a chain of values within the tolerance connects have the same id."""
    # One unit of a decimal's last place: digits behind it may be cut off.
    unit = max(
        (10.0**-one.type.scale for one in (mine, theirs) if pa.types.is_decimal(one.type)),
        default=0.0,
    )
    both = [pc.cast(one, pa.float64(), safe=False) for one in (mine, theirs)]
    valid = np.concatenate([one.is_valid().to_numpy(zero_copy_only=False) for one in both])
    values = np.concatenate([one.fill_null(0.0).to_numpy(zero_copy_only=False) for one in both])
    values = values + 0.0  # -0.0 is 0.0
    order = np.argsort(values, kind="stable")  # NaN comes last
    after = values[order]
    before = np.concatenate([after[:1], after[:-1]])
    with np.errstate(invalid="ignore"):
        near = np.abs(after - before) <= RELATIVE * np.maximum(np.abs(after), np.abs(before)) + (
            ABSOLUTE + unit
        )
        # Infinities must be equal. A finite value is near none, though any distance is within a part of infinity.
        alike = (after == before) | (np.isfinite(after) & np.isfinite(before) & near)
    alike |= np.isnan(after) & np.isnan(before)
    ids = np.empty(len(values), np.int64)
    ids[order] = np.cumsum(~alike)
    ids[~valid] = NULL
    return ids


def _list_ids(mine, theirs):
    children = _ids(mine.flatten(), theirs.flatten())
    lengths = np.concatenate(
        [
            pc.list_value_length(one).fill_null(0).to_numpy(zero_copy_only=False)
            for one in (mine, theirs)
        ]
    )
    valid = np.concatenate(
        [one.is_valid().to_numpy(zero_copy_only=False) for one in (mine, theirs)]
    )
    known = {}
    ids = np.full(len(lengths), NULL, np.int64)
    # `flatten` leaves out what null lists may hold, and they count as empty here.
    stops = np.cumsum(lengths)
    for place in np.flatnonzero(valid):
        items = children[stops[place] - lengths[place] : stops[place]].tobytes()
        ids[place] = known.setdefault(items, len(known))
    return ids


def _struct_ids(mine, theirs):
    names = [[field.name for field in one.type] for one in (mine, theirs)]
    assert names[0] == names[1], f"{mine.type} is not {theirs.type}"
    valid = np.concatenate(
        [one.is_valid().to_numpy(zero_copy_only=False) for one in (mine, theirs)]
    )
    ids = np.zeros(len(valid), np.int64)
    for pair in zip(mine.flatten(), theirs.flatten(), strict=True):
        ids = _together(ids, _ids(*pair))
    ids[~valid] = NULL
    return ids
