"""``python -m tensorquery``: output is for pipes; a failure is one line on stderr and a status."""

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from tensorquery.cli import main

PACKAGE = Path(tq.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), *filter(None, sys.path)])}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with files, in which the program runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(2):
        rows = {"user": range(number * 500, number * 500 + 500), "name": ["a,b\n", None] * 250}
        pq.write_table(pa.table(rows), f"data/{number}.parquet", row_group_size=100)
    with open("people.txt", "w", newline="") as file:
        csv.writer(file).writerows([("id", "age"), (1, 20), (2, 30)])
    return tmp_path


def call(*arguments):
    """Call the program's function; return its status, its output, and its error output. Starting a program takes longer than
    most commands, so few tests do."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = main(arguments)
        except SystemExit as left:
            status = left.code
    return status, out.getvalue(), error.getvalue()


def program(*arguments):
    """Run the program; return its status, its output, and its error output."""
    command = [sys.executable, "-m", "tensorquery", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    return done.returncode, done.stdout, done.stderr


def works(*arguments):
    status, out, error = call(*arguments)
    assert (status, error) == (0, "")
    return out


T = ("--table", "t=data")


# --- what it prints ---


def test_head_prints_a_table(folder):
    assert works("head", "SELECT * FROM t", *T, "-n", "2").splitlines() == [
        "user  name",
        "----  ----",
        "   0  a,b",
        "   1  null",
    ]


def test_head_prints_json(folder):
    sql = "SELECT user, name, sqrt(user - 1) AS root, DATE '2026-01-02' AS day, X'00ff' AS raw, [1, 2] AS list FROM t"
    rows = json.loads(works("head", sql, *T, "--rows", "1", "--format", "json"))
    assert rows == [
        {"user": 0, "name": "a,b\n", "root": None, "day": "2026-01-02", "raw": "AP8=", "list": [1, 2]}
    ]  # fmt: skip


def test_count_prints_a_number(folder):
    sql = "SELECT * FROM t WHERE user >= 10"
    assert works("count", sql, *T) == "990\n"
    assert json.loads(works("count", sql, *T, "--format", "json")) == {"rows": 990}
    assert works("count", "SELECT * FROM 'data/*.parquet'") == "1000\n"


def test_schema_prints_columns(folder):
    sql = "SELECT user, name, count(*) AS n FROM t GROUP BY ALL"
    assert works("schema", sql, *T).splitlines()[2:] == [
        "user    Int64",
        "name    Utf8",
        "n       Int64  not null",
    ]
    assert json.loads(works("schema", sql, *T, "--format", "json"))[2] == {
        "name": "n",
        "type": "Int64",
        "nullable": False,
    }


def test_explain_prints_the_plans(folder):
    sql = "SELECT user FROM t WHERE user > 700"
    out = works("explain", sql, *T)
    assert out.startswith("DataFusion's plan:\n")
    assert "SplitScanExec" in out
    assert json.loads(works("explain", sql, *T, "--format", "json")) == {"explain": out.rstrip()}


def test_shards_prints_the_plan(folder):
    arguments = ("shards", "SELECT user FROM t", *T, "--world-size", "4", "--num-workers", "2")
    assert "10 splits, 4 ranks × 2 workers" in works(*arguments)
    plan = json.loads(works(*arguments, "--batch-size", "50", "--format", "json"))
    assert len(plan["shards"]) == 8
    assert [rank["rows"] for rank in plan["ranks"]] == [250] * 4
    assert [rank["steps"] for rank in plan["ranks"]] == [5] * 4


@pytest.mark.slow
def test_bench_loads_epochs(folder):
    arguments = ("bench", "SELECT user FROM t", *T, "--batch-size", "100")
    lines = works(*arguments).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 0: 1,000 rows in 10 batches, ")
    assert "rows/s, first batch after" in lines[1]
    more = ("--epochs", "1", "--shuffle", "--world-size", "2", "--num-workers", "2")
    (epoch,) = json.loads(works(*arguments, *more, "--format", "json"))
    assert (epoch["rows"], epoch["batches"]) == (500, 5)
    assert 0 <= epoch["wait_share"] <= 1
    assert 0 < epoch["first_batch_seconds"] <= epoch["seconds"]
    out = works("bench", "SELECT name FROM t", *T, "--epochs", "1", "--output-format", "arrow")
    assert out.startswith("epoch 0: 1,000 rows in 1 batches, ")
    assert epoch["rows_per_second"] == pytest.approx(epoch["rows"] / epoch["seconds"])


@pytest.mark.slow
@pytest.mark.parametrize("column", ["code", "record", "items"])
def test_bench_counts_rows_of_any_type(folder, column):
    rows = {
        "code": pa.array(["a", "b", "a"] * 40).dictionary_encode(),
        "record": [{"x": 1, "y": 2}] * 120,
        "items": [[1, 2], [3], []] * 40,
    }
    pq.write_table(pa.table(rows), "types.parquet")
    sql = f"SELECT {column} FROM 'types.parquet'"
    # Each imports torch. Its warnings go to stderr.
    for kind in ("torch", *["numpy"] * (column == "items")):
        status, out, _ = call("bench", sql, "--epochs", "1", "--output-format", kind)
        assert status == 0
        assert out.startswith("epoch 0: 120 rows in 1 batches, ")


def test_bench_of_no_rows_is_no_failure(folder):
    arguments = ("bench", "SELECT user FROM t WHERE user < 0", *T, "--epochs", "1")
    assert re.fullmatch(r"epoch 0: 0 rows in 0 batches, [0-9.]+ s\n", works(*arguments))
    (epoch,) = json.loads(works(*arguments, "--format", "json"))
    assert (epoch["rows"], epoch["first_batch_seconds"]) == (0, None)


def test_head_shows_times_that_python_does_not_have(folder):
    far = pa.array([2**62], pa.timestamp("us"))
    rows = {
        "t": pa.array([1], pa.time64("ns")),
        "items": pa.ListArray.from_arrays([0, 1], far),
        "record": pa.StructArray.from_arrays([far], names=["at"]),
        "pairs": pa.MapArray.from_arrays([0, 1], ["k"], far),
    }
    with pa.ipc.new_file("far.arrow", pa.table(rows).schema) as writer:
        writer.write_table(pa.table(rows))
    text = f"<value out of range: {2**62}>"
    assert json.loads(works("head", "SELECT * FROM 'far.arrow'", "--format", "json")) == [
        {"t": "00:00:00.000000001", "items": [text], "record": {"at": text}, "pairs": [["k", text]]}
    ]
    assert "00:00:00.000000001" in works("head", "SELECT * FROM 'far.arrow'")


def test_tables_have_the_format_of_their_names_or_the_one_given(folder):
    assert works("count", "SELECT * FROM p WHERE age > 20", "--table", "p=people.txt:csv") == "1\n"
    (folder / "people.txt").rename("people.csv")
    joined = "SELECT age FROM t JOIN p ON user = id"
    assert works("count", joined, *T, "--table", "p=people.csv") == "2\n"
    # A colon of the path.
    (folder / "people.csv").rename("a:b.csv")
    assert works("count", "SELECT * FROM p", "-t", "p=a:b.csv") == "2\n"


@pytest.mark.slow
def test_the_console_script_and_the_module_are_the_same(folder):
    commands = {
        ("count", "SELECT * FROM t", *T): 0,
        ("head", "SELECT usr FROM t", *T): 1,
        ("haed", "SELECT 1"): 2,
        ("--version",): 0,
    }
    for arguments, status in commands.items():
        found = program(*arguments)
        assert found == call(*arguments)
        assert found[0] == status
    assert works("--version") == f"tensorquery {tq.__version__}\n"
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert 'tensorquery = "tensorquery.cli:main"' in text


def test_help_shows_examples(folder):
    out = works("--help")
    assert "tensorquery head \"SELECT * FROM 'data/**/*.parquet'\"" in out
    for name in ("explain", "schema", "count", "head", "shards", "bench"):
        assert name in out
        assert "--table NAME=PATH[:FORMAT]" in works(name, "--help")


# --- what goes wrong ---

WRONG_CALLS = {
    (): "the following arguments are required: COMMAND; tensorquery --help says more",
    ("SELECT 1",): 'a command comes before the SQL, for example: head "SELECT 1"',
    ("haed", "SELECT 1"): "'haed' is none of explain, schema, count, head, shards, bench; did you mean head?",
    ("head",): "the following arguments are required: SQL; tensorquery head --help says more",
    ("head", "SELECT", "*", "FROM", "t"): "unrecognized arguments: * FROM t (is the SQL in quotes?)",
    ("head", "SELECT 1", "--limit", "3"): "unrecognized arguments: --limit 3; tensorquery --help says more",
    ("head", "SELECT 1", "-n", "ten"): "argument -n/--rows: 'ten' must be a whole number of at least 0",
    ("shards", "SELECT 1", "--world-size", "0"): "--world-size: '0' must be a whole number of at least 1",
    ("head", "SELECT 1", "--format", "csv"): "argument --format: 'csv' is none of table, json",
    ("head", "SELECT 1", "--table", "data"): "--table data: a table is NAME=PATH, for example --table events=data/events.parquet",
    ("head", "SELECT 1", "--table", "t="): "--table t=: a table is NAME=PATH",
    ("head", "SELECT 1", "--table", "t=data:parqet"): "'parqet' is none of parquet, csv, tsv, json, ndjson, arrow, orc, avro; did you mean parquet?",
    ("head", "SELECT 1", *T, "--table", "t=people.txt:csv"): "--table t=people.txt:csv: t is given twice; a folder, or a glob, is one table",
    ("head", "SELECT 1", "--storage-option", "hunter2"): "a --storage-option is KEY=VALUE, for example",
}  # fmt: skip

FAILURES = {
    ("head", "SELECT * FROM t"): 'unknown table "t"; no table is registered',
    ("head", "SELECT * FROM e", *T): 'unknown table "e"; did you mean "t"?; registered are t',
    ("head", "SELECT * FROM t", "--table", "t=nothing"): "there is no file or directory",
    ("head", "SELECT usr FROM t", *T): 'unknown column "usr"; did you mean "user"?',
    ("head", "SELEC * FROM t", *T): "SELEC",
    ("count", "DROP TABLE t", *T): "DROP is not allowed: a query only reads",
    ("head", "SELECT * FROM t", "--table", "t=people.txt:parquet"): "people.txt",
    ("bench", "SELECT name FROM t WHERE name IS NULL", *T): "name",
}  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG_CALLS)
def test_a_wrong_call_has_the_status_2_and_says_what_to_write(folder, arguments):
    status, out, error = call(*arguments)
    assert (status, out) == (2, "")
    assert WRONG_CALLS[arguments] in error
    assert error.startswith("tensorquery: ")
    assert error.count("\n") == 1
    assert "hunter2" not in error


@pytest.mark.parametrize("arguments", FAILURES)
def test_a_failure_has_the_status_1_and_one_line(folder, arguments):
    status, out, error = call(*arguments)
    assert (status, out) == (1, "")
    assert FAILURES[arguments] in error
    assert error.startswith("tensorquery: ")
    assert error.count("\n") == 1


def test_an_unknown_table_says_how_a_table_is_named_here(folder):
    assert call("head", "SELECT * FROM t")[2].endswith("; --table NAME=PATH registers a table\n")


def test_a_traceback_is_shown_where_it_is_asked_for(folder):
    status, out, error = call("head", "SELECT usr FROM t", *T, "--traceback")
    assert (status, out) == (1, "")
    assert error.startswith("Traceback")
    assert "QueryError" in error


def test_options_reach_the_store_and_are_never_printed(folder):
    # A port on which nobody listens.
    options = {
        "aws_endpoint": "http://127.0.0.1:1",
        "aws_allow_http": "true",
        "aws_region": "x",
        "aws_access_key_id": "me",
        "aws_secret_access_key": "hunter2hunter2",
        "max_retries": "0",
    }
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    place = ("--table", "t=s3://bucket/a.parquet")
    status, out, error = call("count", "SELECT * FROM t", *place, *given)
    assert (status, out) == (1, "")
    assert "127.0.0.1:1" in error
    assert "hunter2" not in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_warnings_are_a_line_on_stderr(folder):
    warned = (
        "import warnings, tensorquery.cli as command\n"
        "command.VERBS = {'count': lambda query, asked: warnings.warn('take care') or ['7']}\n"
        "raise SystemExit(command.main(['count', 'SELECT 1']))"
    )
    done = subprocess.run([sys.executable, "-c", warned], capture_output=True, text=True, env=ENVIRONMENT)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert done.stderr == "tensorquery: warning: take care\n"


@pytest.mark.slow
def test_what_the_terminal_cannot_spell_is_escaped(folder):
    done = subprocess.run(
        [sys.executable, "-m", "tensorquery", "head", "SELECT 'größe' AS s"],
        capture_output=True,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout.splitlines()[-1] == rb"gr\xf6\xdfe"
    assert done.returncode == 0


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error(folder):
    rows = pa.table({"x": range(200_000)})
    pq.write_table(rows, "many.parquet")
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tensorquery",
            "head",
            "SELECT * FROM 'many.parquet'",
            "-n",
            "200000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as program:
        assert program.stdout.readline() == b"     x\n"
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 1
