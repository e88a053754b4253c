"""The tables that a command line names."""

from __future__ import annotations

import re
from pathlib import Path

from tensorquery._util.options import nearest_name
from tensorquery.cli.arguments import Arguments, UsageError
from tensorquery.sql.file_tables import FileSource, table_format_of
from tensorquery.sql.session import Session

__all__ = ["open_session"]

_FORMATS = ("parquet", "csv", "tsv", "json", "ndjson", "arrow", "orc", "avro")


def open_session(asked: Arguments) -> Session:
    """A session with the tables of a command line.

    Args:
        asked: The command line.

    Returns:
        The session.

    Raises:
        UsageError: A table or an option is not written as it must be.
        TableNotFoundError: A path holds no file.
        DataError: A file is damaged.
    """
    session = Session(storage_options=dict(map(_option, asked.storage_options)))
    names: set[str] = set()
    for text in asked.tables:
        name, path, kind = _table(text)
        if name in names:
            raise UsageError(
                f"--table {text}: {name} is given twice; a folder, or a glob, is one table"
            )
        names.add(name)
        session._register(name, FileSource(path), table_format_of(kind), infer_rows=1000)
    return session


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        # The text there may be a secret.
        raise UsageError(
            "a --storage-option is KEY=VALUE, for example --storage-option region=eu-west-1"
        )
    return key, value


def _table(text: str) -> tuple[str, str, str | None]:
    """Name, path and format."""
    name, equals, path = text.partition("=")
    if not equals or not name.strip() or not path:
        raise UsageError(
            f"--table {text}: a table is NAME=PATH, for example --table events=data/events.parquet"
        )
    place, colon, kind = path.rpartition(":")
    if colon and kind in _FORMATS:
        return name, place, kind
    # A text that is no path with a colon is meant as a format.
    if colon and place and re.fullmatch(r"[A-Za-z]+", kind) and not Path(path).exists():
        near = nearest_name(kind.lower(), _FORMATS)
        hint = f"; did you mean {near}?" if near else ""
        raise UsageError(f"--table {text}: {kind!r} is none of {', '.join(_FORMATS)}{hint}")
    return name, path, None
