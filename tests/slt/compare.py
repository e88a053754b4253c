"""Compares the rows of two engines: as a multiset, value by value, and in the order that ORDER BY states."""

import decimal
import math
from collections import Counter

from .values import Clock, Entries, Interval, Moment, Row, text_of

RELATIVE = 1e-9
"""Floats that differ by less are equal: sums depend on the order of rows."""
ABSOLUTE = 1e-12


def difference(got, want, *, booleans_are_integers=False):
    """Say how two lists of rows differ as multisets, or None where they do not.

    Args:
        got: Rows as tuples of values.
        want: The judge's.
        booleans_are_integers: The judge has no type for truth, and writes 1 and 0.
    """
    if booleans_are_integers:
        got = [tuple(int(one) if isinstance(one, bool) else one for one in row) for row in got]
    if got and want and len(got[0]) != len(want[0]):
        return f"{len(got[0])} columns, expected {len(want[0])}"
    if len(got) != len(want):
        return f"{len(got)} rows, expected {len(want)}"
    more = Counter(map(_key, got))
    less = Counter(map(_key, want))
    if more == less:
        return None
    left = _rest(got, more - less)
    right = _rest(want, less - more)
    unmatched = _pair(left, right)
    if unmatched is None:
        return None
    return f"a row {_line(unmatched[0])}, expected {_line(unmatched[1])}"


def equal_rows(left, right):
    """Returns true if two rows have the same values in the same places."""
    return len(left) == len(right) and all(map(equal, left, right))


def equal(left, right):
    """Returns true if two values mean the same; numbers of any type are compared as numbers."""
    if left is None or right is None:
        return left is right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float, decimal.Decimal)):
        return isinstance(right, (int, float, decimal.Decimal)) and _equal_numbers(left, right)
    if isinstance(left, Row):
        # Engines name fields of anonymous structs differently: places count.
        return isinstance(right, Row) and equal_rows(left.values, right.values)
    if isinstance(left, Entries):
        pairs = isinstance(right, Entries) and len(left.pairs) == len(right.pairs)
        return pairs and all(map(equal_rows, left.pairs, right.pairs))
    if isinstance(left, (Moment, Clock, Interval)):
        return type(left) is type(right) and left == right
    if isinstance(left, tuple):
        return type(right) is tuple and equal_rows(left, right)
    return type(left) is type(right) and left == right


def _equal_numbers(left, right):
    if not isinstance(left, float) and not isinstance(right, float):
        return left == right
    left, right = float(left), float(right)
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right or math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _key(row):
    """A row as something that can be counted: exact, but for signs of zero and types of whole numbers."""
    return tuple(map(_value_key, row))


def _value_key(value):
    if isinstance(value, bool) or value is None:
        return (type(value).__name__, value)
    if isinstance(value, float):
        if value != value:
            return ("number", "NaN")
        return ("number", int(value) if value.is_integer() and abs(value) < 2**53 else value)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            return ("number", str(value))
        return ("number", int(value) if value == value.to_integral_value() else value.normalize())
    if isinstance(value, int):
        return ("number", value)
    if isinstance(value, Row):
        return ("Row", _key(value.values))
    if isinstance(value, Entries):
        return ("Entries", tuple(map(_key, value.pairs)))
    if isinstance(value, (Moment, Clock, Interval)):
        return (type(value).__name__, tuple(value))
    if isinstance(value, tuple):
        return ("list", _key(value))
    return (type(value).__name__, value)


def _rest(rows, counts):
    """The rows that the counts say are left, each as often as they say."""
    rest, counts = [], Counter(counts)
    for row in rows:
        key = _key(row)
        if counts[key] > 0:
            counts[key] -= 1
            rest.append(row)
    return rest


def _pair(left, right):
    """Match rows that differ by rounding only; None, or the first two that match nothing."""
    left, right = sorted(left, key=order_of), sorted(right, key=order_of)
    waiting = list(right)
    unmatched = []
    for row in left:
        # A row's partner stands near its own place: rounding moves it past its neighbours only.
        for index, other in enumerate(waiting[:200]):
            if equal_rows(row, other):
                del waiting[index]
                break
        else:
            unmatched.append(row)
    return (unmatched[0], waiting[0]) if unmatched else None


def order_of(row):
    return tuple(
        (1, float(value), "")
        if isinstance(value, (int, float, decimal.Decimal)) and value == value
        else (0, 0.0, text_of(value))
        for value in row
    )


def _line(row):
    return " | ".join(map(text_of, row))


def order_difference(got, want, keys):
    """Say whether rows that are the same as a multiset stand in another order of their keys.

    Args:
        got: Rows.
        want: The judge's, of the same number.
        keys: Columns by which they are ordered; rows with the same values in these may have any order.

    Returns:
        None where the orders agree; "nulls" where they agree but for where NULLs stand; "order" otherwise.
    """
    left = [tuple(row[key] for key in keys) for row in got]
    right = [tuple(row[key] for key in keys) for row in want]
    if all(map(equal_rows, left, right)):
        return None
    left = [row for row in left if None not in row]
    right = [row for row in right if None not in row]
    if len(left) == len(right) and all(map(equal_rows, left, right)):
        return "nulls"
    return "order"


def sort_keys(items, names):
    """Columns that the items of an ORDER BY stand for, or None where one is no column of the result.

    Args:
        items: Texts, such as `2 DESC` or `a NULLS FIRST`.
        names: Of the result's columns.
    """
    keys, lower = [], [name.lower() for name in names]
    for item in items:
        words = item.replace('"', "").split()
        while len(words) > 1 and words[-1].upper() in ("ASC", "DESC", "FIRST", "LAST", "NULLS"):
            words.pop()
        if len(words) != 1:
            return None
        word = words[0].lower()
        if word.isdigit() and 1 <= int(word) <= len(names):
            keys.append(int(word) - 1)
        elif lower.count(word) == 1:
            keys.append(lower.index(word))
        else:
            return None
    return keys
