"""Runs one file of a suite: its statements in a judge, its queries in the judge and in the loader."""

import contextlib
import os
import random
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tensorquery as tq

from . import compare, dialect, sqltext
from .judges import Duck, JudgeError, Sqlite, Untyped
from .parser import FormatError, Parser, expand
from .product import Product
from .records import Control, Query, Statement

MOST_RECORDS = 200_000
"""Loops of a file may unroll to more; the rest is left out, and the report says so."""


@dataclass
class Options:
    """Options that all files of a run share."""

    scratch: str
    judge: str | None = None
    """"sqlite" or "duckdb"; None: as the file's dialect asks for."""
    queries: int = 0
    """So many of each file, drawn by `seed`; 0 for all."""
    seed: int = 0
    loaders: bool = True
    seconds: float = 60
    """For one query in one engine."""
    memory: int = 4 << 30
    """Bytes that a process may hold."""
    product: type = Product


@dataclass
class Outcome:
    """The outcome of one query."""

    file: str
    line: int
    outcome: str
    """same, refused, dialect, wrong, crash."""
    reason: str = ""
    sql: str = ""
    got: str = ""
    want: str = ""
    count: int = 1

    def as_dict(self):
        """Plain data, for the pipe."""
        return asdict(self)


@dataclass
class FileRun:
    """One file, from its first record to its last.

    Args:
        path: The file.
        options: See `Options`.
        tell: Called with what happens: ("begin", line, sql, phase) and ("done", outcome).
        skip: Numbers of queries (counted from 0) that ended a process before, and are not asked again.
    """

    path: Path
    options: Options
    tell: object
    skip: frozenset = frozenset()
    notes: list = field(default_factory=list)

    def run(self):
        """Run it, and return the notes: what could not be done."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
            self.dialect = dialect_of(self.path, text)
            self.root = root_of(self.path, text, self.dialect)
            records = self._records(self.path, text)
        except (FormatError, OSError) as error:
            return [f"{type(error).__name__}: {error}"]
        self.folder = Path(self.options.scratch) / f"{os.getpid()}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.judge_name = self.options.judge or ("sqlite" if self.dialect == "sqlite" else "duckdb")
        # Paths in statements are relative to the suite's root.
        before = Path.cwd()
        os.chdir(self.root)
        try:
            self._run(records)
        finally:
            os.chdir(before)
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.notes

    def _records(self, path, text):
        """The records of a file and of those that it includes."""
        engines = {"sqlite": ["sqlite"], "duckdb": ["duckdb"], "datafusion": ["datafusion"]}
        records = []
        parsed = Parser(text, engines[self.dialect]).parse()
        for record in parsed:
            if isinstance(record, Control) and record.words[0] == "include":
                base = self.root if self.dialect == "duckdb" else path.parent
                for other in sorted(base.glob(record.words[1])):
                    records += self._records(other, other.read_text(encoding="utf-8"))
            else:
                records.append(record)
        return records

    def _run(self, records):
        if self.judge_name == "sqlite":
            self.judge = Sqlite(seconds=self.options.seconds / 3)
        else:
            self.judge = Duck(self.folder, self.dialect, self.options.seconds / 3)
        self.product = self.options.product(self.folder / "tables")
        self.changed, self.untyped, self.known, self.collations = True, {}, {}, False
        self.connection, self.macros = None, False
        asked = self._drawn(records)
        number, taken = -1, True
        for count, record in enumerate(expand(records)):
            if count >= MOST_RECORDS:
                self.notes.append(f"left out: everything after {MOST_RECORDS} records")
                break
            if isinstance(record, Control):
                if record.words[0] == "halt":
                    break
                taken = self._control(record, taken)
                continue
            if not taken:
                continue
            sql = self._placed(record.sql)
            asks = isinstance(record, Query) or (
                record.expects != "error" and sqltext.is_query(sql)
            )
            if not asks:
                self._statement(record, sql)
                continue
            number += 1
            if (asked is None or number in asked) and number not in self.skip:
                self._query(number, record, sql)
        self.product.close()

    def _drawn(self, records):
        """The numbers of the queries that are asked, or None for all."""
        if not self.options.queries:
            return None
        total = 0
        for count, record in enumerate(expand(records)):
            if count >= MOST_RECORDS:
                break
            total += isinstance(record, Query)
        if total <= self.options.queries:
            return None
        rng = random.Random(f"{self.options.seed} {self.path.name}")
        return set(rng.sample(range(total), self.options.queries))

    def _control(self, record, taken):
        """Act on a control record; returns whether the records that follow are run."""
        kind, *words = record.words
        if kind == "mode" and words:
            return {"skip": False, "unskip": True}.get(words[0], taken)
        if kind in ("load", "restart", "reconnect") and self.judge_name == "duckdb":
            self.changed = True
            try:
                if kind == "load" and words:
                    name = re.sub(r"\W", "_", self._placed(words[0]))
                    self.judge.open(self.folder / f"{name}.db")
                elif kind == "load":
                    self.judge.open()
            except JudgeError as error:
                self.notes.append(f"line {record.line}: {error}")
        return taken

    def _placed(self, sql):
        """The statement with the names of the scratch folder put in."""
        for name in ("{TEST_DIR}", "__TEST_DIR__", "{TEMP_DIR}"):
            sql = sql.replace(name, str(self.folder))
        return sql.replace("{DATA_DIR}", "data").replace("__WORKING_DIRECTORY__", str(self.root))

    def _statement(self, record, sql):
        if not harmless(sql, self.folder):
            return
        self.tell(("begin", record.line, sql, "judge"))
        self.changed = True
        self.macros |= bool({"MACRO", "FUNCTION"} & set(sqltext.words(sql)))
        self.collations |= "COLLATE" in sqltext.words(sql) or "default_collation" in sql
        # A later query over what is missing says so itself.
        with contextlib.suppress(JudgeError):
            self.judge.execute(sql, record.connection)

    def _query(self, number, record, sql):
        outcome = Outcome(str(self.path), record.line, "same", sql=sql)
        if not sqltext.is_query(sql):
            outcome.outcome, outcome.reason = "dialect", "the record is not a query of rows"
            if not sqltext.keyword(sql).startswith("EXPLAIN") and harmless(sql, self.folder):
                self._statement(record, sql)
        else:
            self.tell(("begin", record.line, sql, "judge", number))
            try:
                answer = self.judge.ask(sql, record.connection)
                if isinstance(record, Statement):
                    record = Query(record.line, sql)
                self._compare(number, record, sql, answer, outcome)
            except JudgeError as error:
                outcome.outcome = "dialect"
                outcome.reason = f"the judge: {dialect.kind_of_message(str(error))}"
        if outcome.outcome == "same":
            outcome.sql = ""
        self.tell(("done", outcome))

    def _compare(self, number, record, sql, answer, outcome):
        """Ask the loader, and say what became of it."""
        mentioned = sqltext.names(sql)
        self._sync(mentioned, record.connection)
        untyped = next((why for name, why in self.untyped.items() if name in mentioned), None)
        if untyped:
            outcome.outcome = "dialect"
            outcome.reason = "a table that is not written: " + dialect.kind_of_message(untyped)
            return
        self.tell(("begin", record.line, sql, "loader", number))
        for phase in ("to_arrow", "loaders") if self.options.loaders else ("to_arrow",):
            try:
                if phase == "to_arrow":
                    names, rows = self.product.ask(sql)
                else:
                    rows = self.product.load(sql)
            except tq.TensorQueryError as error:
                self._refused(sql, error, outcome, phase, mentioned)
                return
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                outcome.outcome = "crash"
                outcome.reason = f"{phase}: {type(error).__name__}: {error}"[:400]
                return
            wrong = compare.difference(
                rows, answer.rows, booleans_are_integers=self.judge.booleans_are_integers
            )
            if wrong:
                self._differs(record, sql, answer, rows, f"{phase}: {wrong}", outcome)
                return
            if phase == "to_arrow" and not self._ordered(record, sql, answer, names, rows, outcome):
                return

    def _refused(self, sql, error, outcome, phase, mentioned):
        message = str(error)
        problem = self.product.problem(mentioned)
        if problem is not None:
            message = str(problem)
        outcome.got = message
        if re.search(r"panicked|panic of", message):
            outcome.outcome, outcome.reason = "crash", message[:400]
            return
        reason = dialect.of_refusal(self.judge_name, sql, message)
        if reason:
            outcome.outcome, outcome.reason = "dialect", reason
            return
        outcome.outcome = "refused"
        place = "" if phase == "to_arrow" else "loader: "
        outcome.reason = f"{place}{type(error).__name__}: {dialect.kind_of_message(message)}"

    def _ordered(self, record, sql, answer, names, rows, outcome):
        """Check the order of rows that are right as a set; only the order by a column is judged."""
        items = sqltext.order_by(sql)
        if not items or len(rows) < 2:
            return True
        keys = compare.sort_keys(items, answer.names)
        if keys is None:
            return True
        found = compare.order_difference(rows, answer.rows, keys)
        if found is None:
            return True
        if found == "nulls" and self.judge_name == "sqlite":
            outcome.outcome = "dialect"
            outcome.reason = "ORDER BY: SQLite sorts NULL first, the loader last"
            return False
        if reason := self._collated():
            outcome.outcome, outcome.reason = "dialect", reason
            return False
        self._wrong(outcome, f"to_arrow: the order of {items}", rows, answer.rows)
        return False

    def _differs(self, record, sql, answer, rows, wrong, outcome):
        """Rows that are not the judge's: the dialect's, left open by the statement, or wrong."""
        reason = (
            dialect.of_difference(self.judge_name, sql, rows, answer.rows)
            or self._collated()
            or self._open_limit(record, sql, answer, rows)
        )
        if reason:
            outcome.outcome, outcome.reason = "dialect", reason
        else:
            self._wrong(outcome, wrong, rows, answer.rows)

    def _wrong(self, outcome, reason, got, want):
        outcome.outcome, outcome.reason = "wrong", reason
        outcome.got, outcome.want = _some(got), _some(want)

    def _collated(self):
        if self.collations:
            return "a table or setting of the file has a collation, which Parquet does not hold"
        if self.macros:
            return "the file names a macro as a function"
        return None

    def _open_limit(self, record, sql, answer, rows):
        """LIMIT without a total order: any rows are right that are as many, and that the query without it has."""
        longer = sqltext.without_limit(sql)
        if longer is None or len(rows) != len(answer.rows):
            return None
        try:
            every = self.judge.ask(longer, record.connection).rows
        except JudgeError:
            return None
        if self.judge.booleans_are_integers:
            rows = [tuple(int(v) if isinstance(v, bool) else v for v in row) for row in rows]
        waiting = list(every)
        for row in rows:
            at = next((i for i, one in enumerate(waiting) if compare.equal_rows(row, one)), None)
            if at is None:
                return None
            del waiting[at]
        items = sqltext.order_by(sql)
        keys = compare.sort_keys(items, answer.names) if items else []
        if keys is None or compare.order_difference(rows, answer.rows, keys):
            return None
        return "LIMIT without a total order: the rows are some of those that it may be"

    def _sync(self, mentioned, connection):
        """Write the tables that the query may read and that statements have changed, as the judge's connection sees them."""
        if self.changed or connection != self.connection:
            self.connection = connection
            self.current = {name.lower(): name for name in self.judge.tables(connection)}
            for name in set(self.known) - set(self.current):
                self.product.drop(name)
                self.known.pop(name)
            self.views = {name.lower(): sql for name, sql in self.judge.views(connection).items()}
            self.product.set_views(self.views)
            self.fresh, self.untyped, self.changed = set(), {}, False
        reads = set(mentioned)
        for name in [name for name in self.views if name in mentioned]:
            # Through any number of views.
            waiting = [name]
            while waiting:
                for inner in sqltext.names(self.views[waiting.pop()]) - reads:
                    reads.add(inner)
                    if inner in self.views:
                        waiting.append(inner)
        for name in [name for name in self.current if name in reads and name not in self.fresh]:
            self.fresh.add(name)
            try:
                table = self.judge.table(self.current[name], connection)
                if name in self.known and self.known[name].equals(table):
                    continue
                self.product.put(name, table)
                self.known[name] = table
            except (Untyped, ValueError, NotImplementedError) as error:
                self.untyped[name] = str(error)
                self.product.drop(name)
                self.known.pop(name, None)


def _some(rows, most=12):
    lines = [
        " | ".join(map(compare.text_of, row)) for row in sorted(rows, key=compare.order_of)[:most]
    ]
    return "\n".join(lines + ([f"… {len(rows)} rows"] if len(rows) > most else []))


_WRITES = re.compile(
    r"^\s*(COPY|EXPORT|INSTALL|ATTACH|LOAD|IMPORT|CREATE\s+(PERSISTENT\s+)?SECRET)\b", re.IGNORECASE
)


def harmless(sql, folder):
    """Returns true if a statement writes no files but those of the scratch folder, and installs nothing.

    A suite is anybody's text: it runs in the judge, beside the developer's files.
    """
    return not _WRITES.match(sql) or ("INSTALL" not in sql.upper() and str(folder) in sql)


def dialect_of(path, text):
    """Whose dialect a file is written in: "sqlite", "duckdb" or "datafusion" (and all else of sqllogictest-rs)."""
    if re.search(r"^#\s*name:\s*\S+", text[:2000], re.MULTILINE):
        return "duckdb"
    if path.suffix == ".slt":
        return "datafusion"
    return "sqlite"


def root_of(path, text, dialect):
    """The folder that paths in a file's statements are relative to."""
    named = re.search(r"^#\s*name:\s*(\S+)", text[:2000], re.MULTILINE)
    if dialect == "duckdb" and named and str(path).endswith("/" + named[1]):
        return Path(str(path)[: -len(named[1]) - 1])
    if dialect == "datafusion" and "test_files" in path.parts:
        parents = [one for one in path.parents if one.name == "test_files"]
        return parents[-1].parent
    return path.parent
