"""Where a judge's SQL differs from the loader's by definition. Each has its reason; none of it counts as the same answer.

A refusal is of the dialect where the loader's message says that it has no such syntax or function, or where the standard forbids
what the judge allows. A difference is of the dialect only where a rule below names what both engines define differently.
"""

import re
from dataclasses import dataclass

from . import sqltext


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

DIFFERENCES = (_rule("`export_state` is DuckDB's own", _DUCK, sql=r"\bexport_state\b"),)

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
    if found is None and judge in _DUCK and _TO_INTEGER.search(text) and _off_by_one(got, want):
        return "a fraction that is cast to an integer: DuckDB rounds, the loader cuts off; the standard leaves it open"
    return found


def _off_by_one(got, want):
    """Returns true if rows that are sorted alike differ in whole numbers only, and by one."""
    if len(got) != len(want):
        return False
    try:
        pairs = list(zip(sorted(got), sorted(want), strict=True))
    except TypeError:
        # NULL and numbers have no order: the difference is judged as it stands.
        return False
    return all(
        one == other or (type(one) is int and type(other) is int and abs(one - other) == 1)
        for left, right in pairs
        for one, other in zip(left, right, strict=True)
    )


def kind_of_message(message):
    """A message without its names and numbers, so that the same refusals are counted together."""
    line = message.strip().split("\n")[0]
    line = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", line)
    line = re.sub(r"/\S+/\S+", "…", line)
    line = re.sub(r"\b\d[\d.]*\b", "N", line)
    line = re.sub(r"\b\w+\.\w+\b", "…", line)
    return line[:160]
