"""Our own queries have the rows that their files say; and the runner of other suites finds what is wrong."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from once import once_a_run

from . import compare, own, sqltext
from .dialect import of_difference, of_refusal
from .parser import FormatError, Parser, expand
from .records import Control, Query, Statement
from .run_file import dialect_of, harmless
from .values import Interval, Moment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

REFUSED = {
    "times:date-2262-to-timestamp": "beyond the timestamps of Nanoseconds",
    "windows:exclude-current-row": "found: EXCLUDE",
}
"""Queries that are refused until they are supported, by file:label: words of the refusal. The rows in the file are the right ones."""

LEAST = 400
"""Queries, over all files."""

SECONDS = 900
"""For all of our files; they take some twenty on an idle machine."""


# ------------------------------------------------------------------------------------------------
# Our own files.


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The loader's findings by file name."""
    return once_a_run(tmp_path_factory, "own-queries", _told)


def _told():
    """It runs in another process, so that a query that hangs fails here."""
    done = subprocess.Popen(
        [sys.executable, "-m", "tests.slt.own"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    alarm = threading.Timer(SECONDS, done.kill)
    alarm.start()
    lines = [json.loads(line) for line in done.stdout]
    done.wait()
    alarm.cancel()
    return {line["file"]: line for line in lines if "file" in line}


@pytest.mark.parametrize("name", own.files())
def test_own_queries_have_the_rows_of_their_file(name, told):
    assert name in told, "a query ended the process, or did not end"
    assert told[name]["asked"]
    found = [own.Finding(**one) for one in told[name]["findings"]]
    wrong = [one for one in found if one.by != "refused"]
    assert not wrong, "\n".join(f"{one.by} {one.name}: {one.told}\n{one.sql}" for one in wrong)
    refused = {one.name: one.told for one in found if one.by == "refused"}
    expected = {key: words for key, words in REFUSED.items() if key.startswith(f"{name}:")}
    now_answered = expected.keys() - refused.keys()
    assert not now_answered, "answered now: take these out of REFUSED"
    new = {key: words for key, words in refused.items() if key not in expected}
    assert not new
    for key, words in expected.items():
        assert words in refused[key]


def test_there_are_hundreds_of_queries_and_labels_name_one_each():
    names, count = [], 0
    for name, path in own.files().items():
        queries = [one for one in own.records_of(path) if isinstance(one, Query)]
        count += len(queries)
        names += [f"{name}:{one.label}" for one in queries if one.label]
        assert all(one.expected is not None for one in queries), name
    assert count >= LEAST
    assert len(names) == len(set(names))
    assert REFUSED.keys() <= set(names)


# ------------------------------------------------------------------------------------------------
# The formats.

SQLITE = """\
hash-threshold 8

statement ok
CREATE TABLE t1(a INTEGER, s VARCHAR(9))

statement error
CREATE TABLE t1(a INTEGER)

onlyif mysql # DIV
query I rowsort label-1
SELECT a DIV 2 FROM t1
----
1

skipif mysql
query IT valuesort label-1
SELECT a, s
  FROM t1
----
8 values hashing to 3c13dee48d9356ae19af2515e05e6b54

query I
SELECT 1
----
1

halt

query I
SELECT 2
----
2
"""

DUCKDB = """\
# name: test/sql/some.test
# group: [sql]

require parquet

loop i 0 3

skipif i=1
statement ok con1
CREATE TABLE t${i} AS SELECT ${i} AS a

endloop

foreach type <integral> !hugeint varchar

query I
SELECT '1'::${type}
----
1

endloop

query II nosort label
SELECT 1, 2
----
1\t2
"""

DATAFUSION = """\
control sortmode rowsort

statement count 3
INSERT INTO t VALUES (1), (2), (3)

query error DataFusion error: .* not found
SELECT x FROM t

query error
SELECT 1 / 0
----
several lines

of a message


query TI nosort
SELECT 'a', 1
----
a 1

query I
SELECT 1
----
1
"""


def test_sqlites_format():
    records = Parser(SQLITE, ["sqlite"]).parse()
    first, second, third, fourth, fifth, _ = records
    assert first == Statement(3, "CREATE TABLE t1(a INTEGER, s VARCHAR(9))")
    assert second.expects == "error"
    assert third.sql == "SELECT a, s\n  FROM t1"
    assert (third.types, third.sort, third.label) == ("IT", "valuesort", "label-1")
    assert third.expected == ("8 values hashing to 3c13dee48d9356ae19af2515e05e6b54",)
    assert fourth.sort == "nosort"
    assert fifth.words == ("halt",)


def test_the_condition_decides_by_the_engine():
    mysql = [one for one in Parser(SQLITE, ["mysql"]).parse() if isinstance(one, Query)]
    assert [one.sql for one in mysql] == ["SELECT a DIV 2 FROM t1", "SELECT 1", "SELECT 2"]
    kept = Parser(
        "skipif duckdb\nquery I\nSELECT 1\n----\n1\n", ["duckdb"], kept=["duckdb"]
    ).parse()
    assert kept[0].skipped_by == {"duckdb"}


def test_duckdbs_loops():
    records = list(expand(Parser(DUCKDB, ["duckdb"]).parse()))
    assert records[0] == Control(4, ("require", "parquet"))
    statements = [one for one in records if isinstance(one, Statement)]
    assert [one.sql for one in statements] == [
        "CREATE TABLE t0 AS SELECT 0 AS a",
        "CREATE TABLE t2 AS SELECT 2 AS a",
    ]
    assert {one.connection for one in statements} == {"con1"}
    queries = [one.sql for one in records if isinstance(one, Query)]
    assert "SELECT '1'::varchar" in queries
    assert "SELECT '1'::utinyint" in queries
    assert "SELECT '1'::hugeint" not in queries
    assert records[-1].expected == ("1\t2",)


def test_datafusions_controls():
    records = Parser(DATAFUSION, ["datafusion"]).parse()
    assert [one.expects for one in records if isinstance(one, Statement)] == [
        "ok",
        "error",
        "error",
    ]
    last, first = records[-1], records[-2]
    assert (first.sort, first.expected) == ("nosort", ("a 1",))
    assert last.sort == "rowsort"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Query I\nSELECT 1\n", "line 1: no record begins with"),
        ("statement perhaps\nSELECT 1\n", "line 1: statement 'perhaps'"),
        ("loop i 0 3\n\nstatement ok\nSELECT 1\n", "line 1: a loop without `endloop`"),
        ("endloop\n", "line 1: `endloop` without a loop"),
        ("loop i 0\n\nendloop\n", "line 1: a loop needs"),
    ],
)
def test_what_is_no_record_is_an_error_with_its_line(text, words):
    with pytest.raises(FormatError, match=words):
        Parser(text, ["duckdb"]).parse()


def test_the_dialect_follows_from_the_file():
    assert dialect_of(Path("a/select1.test"), SQLITE) == "sqlite"
    assert dialect_of(Path("a/some.test"), DUCKDB) == "duckdb"
    assert dialect_of(Path("a/joins.slt"), DATAFUSION) == "datafusion"


def test_statements_that_write_or_install_are_not_run():
    scratch = Path("/scratch")
    assert harmless("CREATE TABLE t(a INTEGER)", scratch)
    assert not harmless("COPY t TO 'mine.csv'", scratch)
    assert not harmless("  install httpfs", scratch)
    assert harmless("COPY t TO '/scratch/t.csv'", scratch)


def test_the_text_of_statements():
    assert sqltext.is_query("-- first\n(SELECT 1)")
    assert not sqltext.is_query("SELECT 1; SELECT 2")
    assert not sqltext.is_query("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a")
    assert sqltext.order_by("SELECT a FROM t ORDER BY a, f(b, 'x,y') DESC LIMIT 3") == [
        "a",
        "f(b, 'x,y') DESC",
    ]
    assert sqltext.order_by("SELECT sum(a) OVER (ORDER BY b) FROM t") is None
    assert (
        sqltext.without_limit("SELECT a FROM t ORDER BY a LIMIT 3 OFFSET 1")
        == "SELECT a FROM t ORDER BY a "
    )
    assert sqltext.without_limit("SELECT (SELECT 1 LIMIT 1)") is None


# ------------------------------------------------------------------------------------------------
# The comparison.


@pytest.mark.parametrize(
    ("got", "want", "same"),
    [
        ([(1,), (2,)], [(2,), (1,)], True),
        ([(1,), (1,)], [(1,), (2,)], False),
        ([(1,)], [(1,), (1,)], False),
        ([(1.0,)], [(1,)], True),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(0.3001,)], [(0.3,)], False),
        ([(float("nan"),)], [(float("nan"),)], True),
        ([(float("nan"),)], [(None,)], False),
        ([(-0.0,)], [(0.0,)], True),
        ([(2**53 + 1,)], [(2**53,)], False),
        ([("1",)], [(1,)], False),
        ([(True,)], [(1,)], False),
        ([(None,)], [(0,)], False),
        ([("",)], [(None,)], False),
        ([((1, None),)], [((1, None),)], True),
        ([((1, None),)], [((1, 0),)], False),
        ([(Moment(0, True),)], [(Moment(0, False),)], False),
        ([(1, 2)], [(1,)], False),
        ([], [], True),
    ],
)
def test_rows_are_compared_as_a_multiset_of_typed_values(got, want, same):
    assert (compare.difference(got, want) is None) == same


def test_where_the_judge_has_no_booleans_they_are_numbers():
    assert compare.difference([(True,)], [(1,)], booleans_are_integers=True) is None
    assert compare.difference([(True,)], [(0,)], booleans_are_integers=True)


def test_the_order_of_keys_is_compared():
    assert compare.sort_keys(["2 DESC", "a"], ["a", "b"]) == [1, 0]
    assert compare.sort_keys(["a + 1"], ["a", "b"]) is None
    rows = [(1, "x"), (2, "y"), (2, "z")]
    assert compare.order_difference(rows, [rows[0], rows[2], rows[1]], [0]) is None
    assert compare.order_difference(rows, rows[::-1], [0]) == "order"
    assert compare.order_difference([(None,), (1,)], [(1,), (None,)], [0]) == "nulls"


def test_what_counts_as_dialect_has_a_reason():
    assert "zero" in of_refusal("sqlite", "SELECT 1 / 0", "Arrow error: Divide by zero error")
    assert of_refusal("sqlite", "SELECT a FROM t WHERE a IN (1)", "not planned") is None


@pytest.mark.parametrize(
    ("sql", "got", "want", "told"),
    [
        ("SELECT f::BIGINT FROM t", [(-42,), (None,), (42,)], [(None,), (-43,), (42,)], "rounds"),
        ("SELECT f::BIGINT FROM t", [(-42,), (None,)], [(None,), (-44,)], None),
        ("SELECT f FROM t", [(-42,)], [(-43,)], None),
        ("SELECT a - b", [(Interval(0, 0, 86_400 * 10**9 + 5),)], [(Interval(0, 1, 5),)], "days"),
        ("SELECT a - b", [(Interval(0, 0, 86_400 * 10**9 + 5),)], [(Interval(0, 1, 6),)], None),
        ("SELECT d::TEXT", [("-0043-03-15",)], [("0044-03-15 (BC)",)], "with BC"),
        ("SELECT i::TEXT", [("20:08:10.330",)], [("20:08:10.33",)], None),
        ("SELECT corr(a, b) FROM t", [(None,)], [(float("nan"),)], "does not vary"),
        ("SELECT a FROM t", [(None,)], [(float("nan"),)], None),
        ("SELECT avg(n) - 5 FROM t", [(0.0,)], [(-0.5,)], "adds floats"),
        ("SELECT f::BIGINT FROM t", [(1,), (1,)], [(1,)], None),
        ("SELECT f::BIGINT FROM t", [(1, 2)], [(1,)], None),
    ],
)
def test_a_difference_is_of_the_dialect_by_its_values(sql, got, want, told):
    found = of_difference("duckdb", sql, got, want)
    assert (found is None) if told is None else told in found
    assert of_difference("sqlite", sql, got, want) is None


# ------------------------------------------------------------------------------------------------
# The runner.

SUITE = """\
statement ok
CREATE TABLE t(a INTEGER, b INTEGER)

statement ok
INSERT INTO t VALUES (1, 10), (2, NULL), (3, 30), (4, 10)

query I rowsort
SELECT a FROM t WHERE b = 10
----
1
4

query I nosort
SELECT a AS lost FROM t WHERE a > 1
----
2
3
4

query I nosort
SELECT a AS twice FROM t WHERE a > 1
----
2
3
4

query I nosort
SELECT a AS backwards FROM t ORDER BY 1 DESC
----
4
3
2
1

query I rowsort
SELECT a AS raises FROM t

query I rowsort
SELECT a AS dies FROM t

query I rowsort
SELECT a AS hangs FROM t

statement ok
DELETE FROM t WHERE a = 1

query I rowsort
SELECT a FROM t
----
2
3
4

query I rowsort
SELECT no_such_function(a) FROM t
"""


def run(folder, *arguments):
    """The exit status, what the command says, and its report."""
    command = [sys.executable, "-m", "tests.slt", str(folder), "--jobs", "1"]
    done = subprocess.run(
        [*command, "--report", f"{folder}/report.md", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    report = folder / "report.md"
    return done.returncode, done.stdout + done.stderr, report.read_text() if report.exists() else ""


def test_a_right_loader_passes_in_each_dialect(tmp_path):
    (tmp_path / "a.test").write_text(SUITE)
    (tmp_path / "b.slt").write_text(SUITE)
    (tmp_path / "c.test").write_text("# name: c.test\n\n" + SUITE)
    status, told, report = run(tmp_path)
    assert status == 0, told + report
    assert "3 files, 27 queries: 24 same, 0 refused, 3 dialect, 0 wrong, 0 crash" in told
    assert "the judge: OperationalError: no such function" in report
    assert "the judge: CatalogException" in report


def test_each_planted_fault_is_found_and_fails_the_run(tmp_path):
    (tmp_path / "a.test").write_text(SUITE)
    status, told, report = run(
        tmp_path, "--product", "tests.slt.planted:Planted", "--seconds", "20"
    )
    assert status == 1
    assert "9 queries: 2 same, 0 refused, 1 dialect, 3 wrong, 3 crash" in told
    line = {
        name: next(at for at, one in enumerate(SUITE.split("\n")) if name in one)
        for name in ("lost", "twice", "backwards", "raises", "dies", "hangs")
    }
    for name, outcome, words in [
        ("lost", "wrong", "to_arrow: 2 rows, expected 3"),
        ("twice", "wrong", "loaders: 4 rows, expected 3"),
        ("backwards", "wrong", "to_arrow: the order of"),
        ("raises", "crash", "to_arrow: RuntimeError: planted"),
        ("dies", "crash", "the process ended with status -6"),
        ("hangs", "crash", "no answer within 20 s"),
    ]:
        entry = report.split(f"a.test:{line[name]}: ")[1]
        assert entry.startswith(outcome)
        assert words in entry[:300]


def test_a_part_of_the_queries_can_be_drawn(tmp_path):
    (tmp_path / "a.test").write_text(SUITE)
    status, told, _ = run(tmp_path, "--queries", "2", "--seed", "3", "--without-loaders")
    assert status == 0
    assert "1 files, 2 queries" in told


def test_a_folder_without_files_is_an_error(tmp_path):
    status, told, _ = run(tmp_path)
    assert status == 2
    assert "no file ends with .test, .slt" in told
