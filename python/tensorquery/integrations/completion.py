"""Which names of tables and columns can stand at a place: in SQL, and in calls of sessions and queries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tensorquery import _core
from tensorquery.errors import TensorQueryError
from tensorquery.sql.query import Query
from tensorquery.sql.registry import columns_of
from tensorquery.sql.session import Session

__all__ = ["complete_in_python", "complete_in_sql"]

Names = list[tuple[str, str]]
"""Text to put in, and its kind: "table" or "column"."""

_MOST_TABLES = 20

_WORD = re.compile(r'(?:(?P<owner>\w+|"[^"\n]*")\.)?(?P<word>"?\w*)$')
_FROM = re.compile(
    r'\b(?:FROM|JOIN)\s+(?P<table>[A-Za-z_]\w*|"[^"]+")(?:\s+(?:AS\s+)?(?P<alias>[A-Za-z_]\w*))?',
    re.IGNORECASE,
)
_TABLE_WANTED = re.compile(r'\b(?:FROM|JOIN)\s+"?\w*$', re.IGNORECASE)
_CALL = re.compile(
    r"(?P<owner>[A-Za-z_]\w*)\.(?P<method>table|deregister|select)\((?P<rest>[^()]*?)"
    r"(?P<quote>[\"'])(?P<word>[^\"']*)$"
)


def complete_in_sql(before: str, sql: str, session: Session) -> tuple[str, Names]:
    """Names at the end of `before`.

    Args:
        before: The text before the cursor.
        sql: The whole statement, which may not be complete.
        session: Whose tables are meant.

    Returns:
        What the names begin with, and the names that begin so. Behind FROM and JOIN tables, behind ``table.`` its
        columns, elsewhere the columns of the tables that the statement names, and tables.
    """
    match = _WORD.search(before)
    if match is None or before.count("'") % 2:
        # Within a text, or a path.
        return "", []
    word = match["word"]
    tables = [table.name for table in session.tables]
    named = _named(sql, tables)
    if match["owner"] is not None:
        table = named.get(_bare(match["owner"]))
        columns = [] if table is None else _columns(session, table)
        return word, _fitting(word, columns, "column")
    if _TABLE_WANTED.search(before):
        return word, _fitting(word, tables, "table")
    # Where there is no FROM yet, any table may follow.
    meant = dict.fromkeys(named.values()) or tables[:_MOST_TABLES]
    columns = [name for table in meant for name in _columns(session, table)]
    found = _fitting(word, dict.fromkeys(columns), "column")
    return word, found + _fitting(word, tables, "table") if word else found


def complete_in_python(before: str, variables: Mapping[str, Any]) -> tuple[str, Names]:
    """Names at the end of `before`, within quotes: ``session.table("``, ``query.select(["``.

    Args:
        before: The text before the cursor.
        variables: The user's.

    Returns:
        What the names begin with, and the names that begin so.
    """
    match = _CALL.search(before)
    if match is None:
        return "", []
    owner, word = variables.get(match["owner"]), match["word"]
    if isinstance(owner, Session) and match["method"] != "select" and not match["rest"].strip():
        return word, [
            (table.name, "table") for table in owner.tables if table.name.startswith(word)
        ]
    if isinstance(owner, Query) and match["method"] == "select" and "filters" not in match["rest"]:
        return word, [(name, "column") for name in owner.column_names if name.startswith(word)]
    return "", []


def _named(sql: str, tables: Iterable[str]) -> dict[str, str]:
    """Tables that a statement names, by name and by alias."""
    known = set(tables)
    named = {}
    for match in _FROM.finditer(sql):
        table = _bare(match["table"])
        if table in known:
            named[table] = table
            if match["alias"] is not None:
                named[match["alias"].lower()] = table
    return named


def _bare(name: str) -> str:
    """A name as the session knows it: in lower case, unless it is quoted."""
    return name[1:-1] if name.startswith('"') else name.lower()


def _columns(session: Session, table: str) -> list[str]:
    try:
        return [name for name, _, _ in columns_of(session, table)]
    except TensorQueryError:
        # A view whose tables are gone: running the statement says so.
        return []


def _fitting(word: str, names: Iterable[str], kind: str) -> Names:
    """The names that begin with a word, as SQL has them."""
    quoted = word.startswith('"')
    start = word.removeprefix('"') if quoted else word.lower()
    found = []
    for name in names:
        if (name if quoted else name.lower()).startswith(start):
            plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) is not None and not quoted
            found.append((name if plain else _core.quote_identifier(name), kind))
    return found
