"""The judges of the differential tests: DuckDB, SQLite and polars, which answer the same statement over the same rows.

DuckDB answers everything; SQLite and polars answer the statements that they can express. A judge known to depart from the standard,
or from the product's documented rule, is not asked there; DISAGREEMENTS lists who, where and who is right.
"""

import math
import re
import sqlite3

import duckdb
import polars as pl
import pyarrow as pa

from answers import assert_same_answer

DISAGREEMENTS = (
    (
        "rows of values with NULL",
        "DuckDB: (1, NULL) = (1, NULL) is true",
        "the standard and SQLite: unknown",
    ),
    (
        "NaN",
        "SQLite: a NaN is NULL",
        "the product, DuckDB and PostgreSQL: a NaN equals a NaN and is above all numbers",
    ),
    ("dates, decimals, zones, intervals", "SQLite: no such types", "DuckDB alone"),
    (
        "1 / 0, and 7 / 2",
        "DuckDB: NULL, and 3.5; SQLite: NULL, and 3",
        "the standard: an error, and 3; not asked",
    ),
    (
        "LIKE",
        "SQLite: letters of any case, unless a pragma says otherwise",
        "the standard: the same letter",
    ),
    ("upper('ß'), upper('é')", "SQLite: only ASCII", "not asked of SQLite"),
    ("integers that overflow", "SQLite: a float", "the standard: an error; not asked"),
    ("-0.0", "a key of its own in the engine's groups, the same as 0.0 in all judges", "not asked"),
    (
        "INTERSECT before UNION",
        "SQLite: from left to right",
        "the standard; SQLite is asked of one operator alone",
    ),
    (
        "x IN (…, NULL)",
        "polars: false where nothing is found",
        "the standard: unknown; not asked of polars",
    ),
    (
        "x IS TRUE of a NULL",
        "polars: NULL",
        "the standard: false; not asked of polars",
    ),
    (
        "x = ANY (NULL)",
        "DuckDB: false",
        "the standard: unknown; asked of lists that are there",
    ),
    (
        "array_concat(NULL, NULL)",
        "DuckDB 2: an empty list",
        "PostgreSQL's array_cat and the engine: NULL; asked within CASE",
    ),
    (
        "ORDER BY without NULLS",
        "SQLite, polars: NULLs first",
        "each dialect's own; asked with NULLS alone",
    ),
    ("text", "polars: other widths of types", "compared by value"),
)
"""The statement, the judge's answer, and who is right."""


def duck_session():
    """A connection whose functions have the names that the loader knows, and whose clock is in UTC."""
    duck = duckdb.connect(config={"threads": 1})
    duck.execute("SET TimeZone = 'UTC'")
    for macro in (
        "regexp_like(s, p) AS regexp_matches(s, p)",
        "octet_length(s) AS strlen(s)",
    ):
        duck.execute(f"CREATE MACRO {macro}")
    return duck


class NoWordError(Exception):
    """A judge cannot express a statement."""


class Duck:
    """DuckDB over tables in memory: over files, it would prune by the statistics that are under test."""

    name = "duckdb"

    def __init__(self, connection):
        self.connection = connection

    def load(self, tables):
        """Have these tables and no others."""
        for table in tables:
            self.connection.register("differential_rows", with_directories(table))
            self.connection.execute(
                f"CREATE OR REPLACE TABLE {table.name} AS SELECT * FROM differential_rows"
            )
            self.connection.unregister("differential_rows")

    def answer(self, sql):
        """The answer, as Arrow."""
        try:
            return self.connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise NoWordError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


def with_directories(table):
    """The rows of a table with the column of its hive directories."""
    if not table.hive or "part" not in table.columns:
        return table.rows
    kind = {"int": pa.int64(), "text": pa.string(), "date": pa.date32()}[table.hive]
    parts = []
    for part, place in zip(table.parts, table.places, strict=True):
        values = pa.array([place] * part.num_rows, pa.string()).cast(kind)
        parts.append(part.append_column("part", values))
    return pa.concat_tables(parts)


class Sqlite:
    """SQLite over the columns of its types: integers, texts, booleans, and floats without a NaN."""

    name = "sqlite"
    UNSAID = re.compile(
        r"DECIMAL|'-?(inf|nan)'|'nan'|\bDATE\b|TIMESTAMP|INTERVAL|\bunnest|\bupper|\blower|random|uuid|\[|ILIKE|\bconcat|\blpad|/"
    )

    def load(self, tables):
        """Have these tables and no others."""
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("PRAGMA case_sensitive_like = ON")
        for table in tables:
            rows = with_directories(table)
            names = [name for name in rows.column_names if self._holds(rows[name])]
            self.connection.execute(f"CREATE TABLE {table.name} ({', '.join(names)})")
            marks = ", ".join("?" * len(names))
            values = zip(*(rows[name].to_pylist() for name in names), strict=True)
            self.connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", values)

    @staticmethod
    def _holds(column):
        types = pa.types
        if types.is_floating(column.type):
            return not any(v is not None and math.isnan(v) for v in column.to_pylist())
        return (
            types.is_integer(column.type)
            or types.is_boolean(column.type)
            or types.is_string(column.type)
            or types.is_large_string(column.type)
        )

    def answer(self, sql, schema):
        """The answer, with the types of a schema, or, if that is None, with SQLite's own types."""
        operators = re.findall(r"\b(?:UNION|INTERSECT|EXCEPT)\b", sql)
        if self.UNSAID.search(sql) or len(operators) > 1:
            raise NoWordError("a type or a function that SQLite spells in another way")
        try:
            cursor = self.connection.execute(sql)
            found = cursor.fetchall()
        except (sqlite3.Error, OverflowError) as error:
            raise NoWordError(str(error)) from error
        names = [column[0] for column in cursor.description]
        if schema is not None and names != schema.names:
            raise NoWordError("a column that SQLite does not have")
        columns = list(zip(*found, strict=True)) or [()] * len(names)
        arrays = [
            _typed(list(column), None if schema is None else schema.field(at).type)
            for at, column in enumerate(columns)
        ]
        return pa.table(dict(zip(names, arrays, strict=True)))


def _typed(values, kind):
    """Booleans are integers in SQLite, and sums of many engines decimals."""
    if kind is None:
        return pa.array(values)
    if pa.types.is_boolean(kind):
        return pa.array([None if value is None else bool(value) for value in values])
    if pa.types.is_floating(kind):
        return pa.array([None if value is None else float(value) for value in values])
    try:
        return (
            pa.array(values) if any(v is not None for v in values) else pa.nulls(len(values), kind)
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise NoWordError(str(error)) from error


class Polars:
    """Polars' SQL, for what needs one table: projections, simple filters, groups and DISTINCT."""

    name = "polars"
    KINDS = ("whole table", "distinct", "group", "case", "text", "decimals", "zones")
    UNSAID = re.compile(
        r"\bIN \(|\bANY\b|\bALL\b|DISTINCT ON|\bFILTER\b|OVER|unnest|string_agg|array_agg|bool_|first_value|sum\(DISTINCT"
        r"|position|strpos|NULL\)|IS NULL|CAST\(NULL|random|uuid|HAVING|JOIN|LIMIT|BETWEEN|avg\(|LIKE|%|IS (NOT )?(TRUE|FALSE)"
    )

    def load(self, tables):
        """Have these tables and no others."""
        frames = {}
        for table in tables:
            try:
                frames[table.name] = pl.from_arrow(with_directories(table))
            except Exception:
                continue
        self.context = pl.SQLContext(frames, eager=True)

    def answer(self, sql, schema):
        """The answer, as Arrow."""
        if self.UNSAID.search(sql):
            raise NoWordError("a clause that polars spells in another way")
        try:
            return self.context.execute(sql).to_arrow()
        except BaseException as error:
            # Polars' panics are no exceptions.
            if isinstance(error, KeyboardInterrupt):
                raise
            raise NoWordError(f"{type(error).__name__}: {str(error)[:80]}") from error


class Judges:
    """All judges over the same tables.

    Attributes:
        agreed: How often each judge gave the answer that counts.
        silent: Statements that the judge whose word counts cannot answer, by reason.
    """

    def __init__(self, connection):
        self.duck, self.sqlite, self.polars = Duck(connection), Sqlite(), Polars()

    def load(self, tables):
        """Have these tables and no others."""
        for judge in (self.duck, self.sqlite, self.polars):
            judge.load(tables)

    def answer(self, statement, counted):
        """The answer that counts.

        Args:
            statement: A `Statement`.
            counted: A `Counter` that gets how often each judge had a word.

        Raises:
            NoWordError: The judge of this statement has no word.
            JudgesDifferError: Two judges say different things.
        """
        sql = statement.some_of or statement.judged or statement.sql
        if statement.judge == "sqlite":
            schema = self.duck.answer(sql).schema
            expected = self.sqlite.answer(sql, schema)
            counted["sqlite"] += 1
            return expected
        expected = self.duck.answer(sql)
        counted["duckdb"] += 1
        if statement.some_of or statement.kind == "spilling":
            return expected
        for judge in (self.sqlite, self.polars):
            if judge is self.polars and statement.kind not in Polars.KINDS:
                continue
            try:
                other = judge.answer(sql, expected.schema)
            except NoWordError:
                continue
            try:
                assert_same_answer(other, expected)
            except AssertionError as error:
                raise JudgesDifferError(f"{judge.name} against duckdb: {error}\n{sql}") from error
            counted[judge.name] += 1
        return expected


class JudgesDifferError(AssertionError):
    """Two judges answer differently: a case for DISAGREEMENTS."""
