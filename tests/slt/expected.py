"""Answers as our own `.slt` files have them: a row per line, values parted by tabs, written by `values.text_of`."""

import decimal
import math

from .compare import ABSOLUTE, RELATIVE
from .records import Query
from .values import Clock, Interval, Moment, text_of


def types_of(rows, columns):
    """A letter per column: I, R, B, T, D (dates and times) or ? (nested, or NULL only)."""
    letters = []
    for column in range(columns):
        kinds = {_letter(row[column]) for row in rows if row[column] is not None}
        letters.append("R" if kinds == {"I", "R"} else kinds.pop() if len(kinds) == 1 else "?")
    return "".join(letters)


def _letter(value):
    if isinstance(value, bool):
        return "B"
    if isinstance(value, int):
        return "I"
    if isinstance(value, (float, decimal.Decimal)):
        return "R"
    if isinstance(value, (Moment, Clock, Interval)):
        return "D"
    return "T" if isinstance(value, str) else "?"


def lines_of(rows, sort):
    """Rows as a file has them."""
    lines = ["\t".join(map(text_of, row)) for row in rows]
    return sorted(lines) if sort != "nosort" else lines


def difference(rows, query):
    """Say how rows differ from those that the file has, or None where they do not.

    Numbers are compared as numbers, for engines give them other types and digits; all else is compared as it is written.
    """
    got, want = (
        [tuple(map(text_of, row)) for row in rows],
        [tuple(line.split("\t")) for line in query.expected],
    )
    if len(got) != len(want):
        return f"{len(got)} rows, expected {len(want)}"
    if got and len(got[0]) != len(want[0]):
        return f"{len(got[0])} columns, expected {len(want[0])}"
    if query.sort != "nosort":
        numbers = [letter in "IR" for letter in query.types]
        got = sorted(got, key=lambda row: _order(row, numbers))
        want = sorted(want, key=lambda row: _order(row, numbers))
    for left, right in zip(got, want, strict=True):
        for one, other, letter in zip(left, right, query.types, strict=True):
            if one != other and not (letter in "IR" and _same_number(one, other)):
                return f"{' | '.join(left)}, expected {' | '.join(right)}"
    return None


def _order(row, numbers):
    key = []
    for text, number in zip(row, numbers, strict=True):
        value = _number(text) if number else None
        # To nine digits: rounding must not change the order.
        key.append(
            (0, float(f"{value:.9g}"), "")
            if value is not None and value == value
            else (1, 0.0, text)
        )
    return key


def _number(text):
    try:
        return float(text)
    except ValueError:
        return None


def _same_number(left, right):
    try:
        exact = decimal.Decimal(left), decimal.Decimal(right)
    except decimal.InvalidOperation:
        return False
    if exact[0] == exact[1]:
        return True
    whole = "." not in left and "." not in right and "e" not in left + right
    return not whole and math.isclose(float(left), float(right), rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def complete(text, answer):
    """The text of a file with the rows of its queries put in.

    Args:
        text: The file.
        answer: Called with each `Statement` and `Query`; returns rows of a query, or None to leave what stands there.
    """
    from .parser import Parser

    lines, out, at = text.split("\n"), [], 0
    parser = Parser(text, ["duckdb"], kept=["duckdb"])
    for record in parser.parse():
        rows = answer(record)
        if not isinstance(record, Query) or rows is None:
            continue
        begin = record.line - 1
        out += lines[at:begin]
        types = types_of(rows, len(rows[0])) if rows else record.types or "I"
        out.append(" ".join(filter(None, ["query", types, record.sort, record.label])))
        sql = record.sql.split("\n")
        out += [*sql, "----", *lines_of(rows, record.sort)]
        at = begin + 1 + len(sql)
        if at < len(lines) and lines[at].strip() == "----":
            while at < len(lines) and lines[at].strip():
                at += 1
    return "\n".join([*out, *lines[at:]])
