"""Engines that say what is right: SQLite for its own suite, DuckDB for all others.

Both are asked anew, rather than trusting the rows that a file has: these depend on settings of the engine that wrote them.
"""

import re
import sqlite3
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

from .values import rows_of

MOST_ROWS = 200_000
"""A judge's answer with more rows is not compared."""


class JudgeError(Exception):
    """The judge has no answer: it does not know the syntax or a function, or the statement is wrong."""


MOST_TABLE_ROWS = 100_000
"""A larger table is not written: it is a test of an engine's speed or spilling."""


class Untyped(Exception):
    """A table that is not written: Parquet cannot hold its values in a column of one type, or it is too large."""


@dataclass
class Answer:
    """Rows, and the names of their columns."""

    names: list
    rows: list


@dataclass
class Sqlite:
    """SQLite, in memory."""

    dialect = "sqlite"
    booleans_are_integers = True
    seconds: float = 20
    versions: dict = field(default_factory=dict)

    def __post_init__(self):
        self.open()

    def open(self, path=None):
        """A new, empty database."""
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.set_progress_handler(self._late, 100_000)
        self.deadline = float("inf")

    def _late(self):
        return time.monotonic() > self.deadline

    def _run(self, sql):
        self.deadline = time.monotonic() + self.seconds
        try:
            return self.connection.execute(sql)
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error

    def execute(self, sql, connection=None):
        """Run a statement."""
        self._run(sql)

    def ask(self, sql, connection=None):
        """The answer to a query."""
        cursor = self._run(sql)
        try:
            rows = cursor.fetchmany(MOST_ROWS + 1)
        except (sqlite3.Error, OverflowError) as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error
        if len(rows) > MOST_ROWS:
            raise JudgeError(f"more than {MOST_ROWS} rows")
        return Answer([one[0] for one in cursor.description or []], rows)

    def tables(self, connection=None):
        """The names of the tables."""
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        return [name for (name,) in self.ask(sql).rows]

    def views(self, connection=None):
        """The views: what they select, by name."""
        found = {}
        for name, sql in self.ask("SELECT name, sql FROM sqlite_master WHERE type = 'view'").rows:
            body = re.split(r"\bAS\b", sql, maxsplit=1, flags=re.IGNORECASE)
            found[name] = body[1].strip().rstrip(";")
        return found

    def table(self, name, connection=None):
        """A table as Arrow: INTEGER is int64, REAL and FLOAT are float64, text is text.

        Raises:
            Untyped: A column has values of another type than it declares, which SQLite allows.
        """
        _bounded(name, self.ask(f'SELECT count(*) FROM "{name}"'))
        declared = self.ask(f'PRAGMA table_info("{name}")').rows
        answer = self.ask(f'SELECT * FROM "{name}"')
        columns = list(zip(*answer.rows, strict=True)) or [()] * len(declared)
        arrays, names = [], []
        for (_, column, kind, *_), values in zip(declared, columns, strict=True):
            arrays.append(_typed(name, column, kind.upper(), values))
            names.append(column.lower())
        return pa.table(arrays, names=names)


def _bounded(name, count):
    if count.rows[0][0] > MOST_TABLE_ROWS:
        raise Untyped(f"{name} has more than {MOST_TABLE_ROWS} rows")


def _typed(table, column, declared, values):
    """Values of SQLite as an Arrow column of the declared type's affinity."""
    kinds = {type(one) for one in values if one is not None}
    if "INT" in declared:
        arrow, allowed = pa.int64(), {int}
    elif any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        arrow, allowed = pa.string(), {str}
    elif any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        arrow, allowed = pa.float64(), {float}
    elif kinds <= {int}:
        arrow, allowed = pa.int64(), {int}
    elif kinds <= {int, float}:
        arrow, allowed = pa.float64(), {int, float}
    else:
        arrow, allowed = (pa.string(), {str}) if kinds <= {str} else (pa.binary(), {bytes})
    if not kinds <= allowed:
        held = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise Untyped(f"{table}.{column} is {declared or 'without a type'} and holds {held}")
    return pa.array(values, arrow)


_SETTINGS = (
    # As the standard, PostgreSQL and the loader do; DuckDB's own defaults differ.
    "SET integer_division = true",
    "SET default_null_order = 'postgres'",
    "SET TimeZone = 'UTC'",
    "SET threads = 1",
    "SET enable_progress_bar = false",
    # Names of the loader and of PostgreSQL for what DuckDB has by another.
    "CREATE OR REPLACE TEMP MACRO regexp_like(text, pattern) AS regexp_matches(text, pattern)",
)

_OUR_SETTINGS = re.compile(
    r"\s*(SET|RESET|PRAGMA)\s+(SESSION\s+|GLOBAL\s+)?"
    r"(integer_division|default_null_order|null_order|default_order|TimeZone|TIME\s+ZONE|threads|enable_progress_bar)\b",
    re.IGNORECASE,
)

warnings.filterwarnings("ignore", "Arrow output on a DB-API result")
# It is small here, and the way around it has no answer to statements without rows.


@dataclass
class Duck:
    """DuckDB, in memory or, after `load`, in a file of a scratch folder."""

    scratch: Path
    dialect: str = "duckdb"
    seconds: float = 20
    booleans_are_integers = False

    def __post_init__(self):
        self.connection = None
        self.open()

    def open(self, path=None):
        """A new, empty database, or the one of a file."""
        if self.connection is not None:
            self.connection.close()
        config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        try:
            self.connection = duckdb.connect(str(path or ":memory:"), config=config)
        except duckdb.Error as error:
            self.connection = duckdb.connect(config=config)
            raise JudgeError(f"{type(error).__name__}: {error}") from error
        self.others = {}
        for setting in _SETTINGS:
            self.connection.execute(setting)

    def _run(self, sql, connection):
        run = self.connection
        if connection is not None:
            run = self.others.setdefault(connection, None) or self.connection.cursor()
            self.others[connection] = run
        alarm = threading.Timer(self.seconds, run.interrupt)
        alarm.start()
        try:
            return run.execute(sql)
        except (duckdb.Error, RuntimeError, UnicodeError) as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error
        finally:
            alarm.cancel()

    def execute(self, sql, connection=None):
        """Run a statement; but none that takes back one of our settings.

        A table of DataFusion's `CREATE TABLE … AS VALUES` gets the names that it has there.
        """
        if _OUR_SETTINGS.match(sql):
            return
        self._run(sql, connection)
        made = re.match(
            r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)\s+AS\s+\(?\s*VALUES\b",
            sql,
            re.IGNORECASE,
        )
        if made and self.dialect == "datafusion":
            columns = self._run(f"DESCRIBE {made[1]}", connection).fetchall()
            for number, (column, *_) in enumerate(columns):
                if column == f"col{number}":
                    self._run(f"ALTER TABLE {made[1]} RENAME {column} TO column{number + 1}", None)

    def ask(self, sql, connection=None):
        """The answer to a query."""
        result = self._run(sql, connection)
        try:
            table = _arrow(result)
            if table.num_rows > MOST_ROWS:
                raise JudgeError(f"more than {MOST_ROWS} rows")
            return Answer(table.column_names, rows_of(table))
        except (duckdb.Error, pa.ArrowException, RuntimeError, ValueError, UnicodeError) as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error

    def tables(self, connection=None):
        """The names of the tables that a query of a connection may name without a schema."""
        sql = "SELECT DISTINCT table_name FROM duckdb_tables() WHERE NOT internal AND schema_name = 'main'"
        return [name for (name,) in self._run(sql, connection).fetchall()]

    def views(self, connection=None):
        """The views: what they select, by name."""
        sql = (
            "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        )
        found = {}
        for name, text in self._run(sql, connection).fetchall():
            body = re.split(r"\bAS\b", text, maxsplit=1, flags=re.IGNORECASE)
            found[name] = body[1].strip().rstrip(";")
        return found

    def table(self, name, connection=None):
        """A table as Arrow, as a connection sees it: another one may have an open transaction.

        Raises:
            Untyped: Parquet has no type for one of its columns.
        """
        quoted = name.replace('"', '""')
        try:
            _bounded(name, self.ask(f'SELECT count(*) FROM "{quoted}"', connection))
            for column, kind, *_ in self._run(f'DESCRIBE "{quoted}"', connection).fetchall():
                # Arrow's decimals of 38 digits do not hold them: DuckDB lets them wrap around.
                if "UHUGEINT" in kind:
                    raise Untyped(f"{name}.{column} is {kind}")
            table = _arrow(self._run(f'SELECT * FROM "{quoted}"', connection))
        except (JudgeError, duckdb.Error, pa.ArrowException, RuntimeError, UnicodeError) as error:
            raise Untyped(f"{name}: {error}") from error
        for column in table.schema:
            if isinstance(column.type, pa.BaseExtensionType):
                raise Untyped(f"{name}.{column.name} is {column.type}")
            if pa.types.is_interval(column.type) or pa.types.is_null(column.type):
                raise Untyped(f"{name}.{column.name} is {column.type}")
        lower = [column.lower() for column in table.column_names]
        return table.rename_columns(lower) if len(set(lower)) == len(lower) else table


def _arrow(result):
    """The table of a result; DuckDB has renamed this function more than once."""
    named = "to_arrow_table" if hasattr(result, "to_arrow_table") else "fetch_arrow_table"
    return getattr(result, named)()
