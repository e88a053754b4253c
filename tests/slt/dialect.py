"""Where a judge's SQL differs from the loader's by definition. Each has its reason; none of it counts as the same answer.

A refusal is of the dialect where the loader's message says that it has no such syntax or function, or where the standard forbids
what the judge allows. A difference is of the dialect only where a rule below names what both engines define differently.
"""

import re
from dataclasses import dataclass

from . import sqltext
from .compare import equal_rows, order_of
from .values import Interval, Row


@dataclass(frozen=True)
class Rule:
    """One difference by definition."""

    reason: str
    judges: tuple
    message: re.Pattern | None = None
    """In the loader's error."""
    sql: re.Pattern | None = None
    """In the statement, texts and comments left out."""

    def applies(self, judge, sql, message=""):
        """Returns true if the rule explains what happened."""
        return (
            judge in self.judges
            and (self.message is None or bool(self.message.search(message)))
            and (self.sql is None or bool(self.sql.search(sql)))
        )


_ALL = ("sqlite", "duckdb", "datafusion")
_DUCK = ("duckdb", "datafusion")


def _rule(reason, judges, message=None, sql=None):
    flags = re.IGNORECASE | re.DOTALL
    return Rule(
        reason,
        judges,
        None if message is None else re.compile(message, flags),
        None if sql is None else re.compile(sql, flags),
    )


REFUSALS = (
    _rule(
        "division by zero is an error by the standard, NULL in the judge",
        _ALL,
        message="divide by zero|division by zero",
    ),
    _rule(
        "SQLite turns any text into a number; a text that spells none is an error by the standard",
        ("sqlite",),
        message="cannot cast string|cannot parse",
    ),
    _rule(
        "`IN ()` is SQLite's own: the standard has no empty list",
        ("sqlite",),
        sql=r"\bIN\s*\(\s*\)",
    ),
    _rule(
        "`IN name`, without brackets, is SQLite's own",
        ("sqlite",),
        sql=r"\bIN\s+\w+\s*(?:$|[;)]|\s(?!\())",
    ),
    _rule(
        "a column that is neither grouped nor aggregated: SQLite takes it from any row",
        ("sqlite",),
        message="must be part of group by|must appear in the group by|not in group by|neither grouped",
    ),
    _rule(
        "a sign before a text: SQLite takes it for a number, and the standard has none",
        ("sqlite",),
        message="unary operator .* only supports numeric|cannot .*negat.*(utf8|text)",
    ),
    _rule(
        "`group_concat` and `total` are SQLite's own aggregates",
        ("sqlite",),
        message="no aggregate and no window function is called",
        sql=r"\b(group_concat|total)\b",
    ),
    _rule(
        "a function that the loader does not have",
        _ALL,
        message="invalid function|no function|unknown function",
    ),
    _rule(
        "syntax that the loader does not have",
        _ALL,
        message="parsererror|sql parser error|cannot be read:|expected: ",
    ),
)

DIFFERENCES = (
    _rule("`export_state` is DuckDB's own", _DUCK, sql=r"\bexport_state\b"),
    _rule(
        "a sample: which rows are drawn is each engine's own",
        _DUCK,
        sql=r"\b(TABLE|USING )SAMPLE\b",
    ),
    _rule(
        "the moment of the query",
        _DUCK,
        sql=r"\b(CURRENT_(TIME|TIMESTAMP|DATE)\b|(now|today)\s*\()",
    ),
    _rule(
        "row values with NULL: unknown by the standard, a struct in DuckDB",
        _DUCK,
        sql=r"\(\s*\w+\s*,\s*\w+\s*\)\s*(=|<>|<|>|IN\b)",
    ),
    _rule(
        "`list_distinct` leaves out NULL in DuckDB, and keeps one in Spark and here",
        _DUCK,
        sql=r"\blist_distinct\b",
    ),
    _rule(
        "`overlay` by a negative length: PostgreSQL's formula here",
        _DUCK,
        sql=r"\boverlay\s*\(.*\bFOR\s*-",
    ),
    _rule("numbers and texts in one list are texts", _DUCK, sql=r"SELECT \[ \w+ , \w+ \]"),
    _rule(
        "TRY_CAST of a text: dates and times of ISO 8601 alone are read",
        _DUCK,
        sql=r"\btry_cast\b.*\bAS (DATE|TIME|TIMESTAMP)\b",
    ),
    _rule(
        "a number with a point is DOUBLE here, and a decimal in DuckDB",
        _DUCK,
        sql=r"(::|: :) FLOAT / \d|\d{16,} % \d+\.\d",
    ),
)

_TO_INTEGER = re.compile(r"(\bAS|: :|::)\s*\w*INT(EGER)?\d*\b", re.IGNORECASE)


def bare(sql):
    """The statement without texts and comments, a space between all that is left."""
    return " ".join("''" if kind == "text" else text for kind, text, *_ in sqltext.tokens(sql))


def of_refusal(judge, sql, message):
    """The reason why a refusal is of the dialect, or None."""
    text = bare(sql)
    return next((rule.reason for rule in REFUSALS if rule.applies(judge, text, message)), None)


def of_difference(judge, sql, got, want):
    """The reason why other rows are of the dialect, or None."""
    text = bare(sql)
    found = next((rule.reason for rule in DIFFERENCES if rule.applies(judge, text)), None)
    if found is None and judge in _DUCK and len(got) == len(want):
        pairs = list(zip(sorted(got, key=order_of), sorted(want, key=order_of), strict=True))
        if any(len(left) != len(right) for left, right in pairs):
            return None
        values = [pair for left, right in pairs for pair in zip(left, right, strict=True)]
        differ = [(one, other) for one, other in values if not equal_rows((one,), (other,))]
        if differ:
            found = next((reason for reason, rule in _OF_VALUES if rule(text, differ)), None)
    return found


def _is_rounded(text, differ):
    return _TO_INTEGER.search(text) and all(
        isinstance(one, (int, float))
        and isinstance(other, (int, float))
        and abs(one - other) == 1
        and one == int(one)
        for one, other in differ
    )


def _is_span(text, differ):
    """Intervals of equal length, where a day has 24 hours."""
    day = 86_400 * 10**9
    return all(
        isinstance(one, Interval)
        and isinstance(other, Interval)
        and not one.months + other.months
        and one.days * day + one.nanoseconds == other.days * day + other.nanoseconds
        for one, other in differ
    )


def _is_before_christ(text, differ):
    return all(isinstance(other, str) and "(BC)" in other for _, other in differ)


def _is_finer(text, differ):
    return all(
        isinstance(one, Interval) and isinstance(other, Interval)
        and one[:2] == other[:2] and abs(one.nanoseconds - other.nanoseconds) < 1000
        for one, other in differ
    )  # fmt: skip


def _is_rearranged(text, differ):
    """Structs of the same fields in another order."""

    def plain(value):
        if isinstance(value, Row):
            fields = zip(value.names, map(plain, value.values), strict=True)
            return sorted(fields, key=str)
        return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value

    return all(plain(one) == plain(other) for one, other in differ)


def _is_moment(text, differ):
    """Correlations of what does not vary."""
    named = re.search(
        r"\b(corr|covar\w*|regr_\w+|stddev\w*|var_\w+|skewness|kurtosis\w*)\s*\(",
        text,
        re.IGNORECASE,
    )
    return named and all(one is None and other != other for one, other in differ)


def _is_beyond(text, differ):
    return re.search(r"\d{39,}", text)


def _is_mean(text, differ):
    """Means of large integers: sums of floats, whose last digit differs."""
    return re.search(r"\bavg\s*\(", text, re.IGNORECASE) and all(
        isinstance(one, float) and isinstance(other, float) and abs(one - other) <= 0.5
        for one, other in differ
    )


_OF_VALUES = (
    (
        "a fraction that is cast to an integer: DuckDB rounds, the loader cuts off; the standard leaves it open",
        _is_rounded,
    ),
    ("the difference of two timestamps: DuckDB counts days, the loader nanoseconds", _is_span),
    ("an interval of nanoseconds: DuckDB has microseconds", _is_finer),
    ("a struct whose fields stand in another order", _is_rearranged),
    ("a year before the first as text: with BC in DuckDB, and with a sign here", _is_before_christ),
    ("a correlation of what does not vary: NaN in DuckDB, NULL in PostgreSQL and here", _is_moment),
    ("a number of more than 38 digits is a DOUBLE here, and a HUGEINT in DuckDB", _is_beyond),
    ("the mean of integers beyond 2^53: the loader adds floats, DuckDB integers", _is_mean),
)


def kind_of_message(message):
    """A message without its names and numbers, so that the same refusals are counted together."""
    line = message.strip().split("\n")[0]
    line = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", line)
    line = re.sub(r"/\S+/\S+", "…", line)
    line = re.sub(r"\b\d[\d.]*\b", "N", line)
    line = re.sub(r"\b\w+\.\w+\b", "…", line)
    return line[:160]
