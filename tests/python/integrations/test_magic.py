"""``%load_ext tensorquery`` in a real shell: queries out of cells, errors in one line, names by the tab key."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import tensorquery as tq


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """A shell with the extension, a session and a query."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    try:
        shell.run_line_magic("load_ext", "tensorquery")
        session = tq.Session()
        session.register_table(
            "events", pa.table({"user": [1, 2], "Item": [3, 4], "usage": [5, 6]})
        )
        session.register_table("Weird name", pa.table({"x": [1]}))
        shell.user_ns.update(session=session, query=session.table("events"), tq=tq, pa=pa)
        yield shell
    finally:
        shell.run_line_magic("unload_ext", "tensorquery")
        InteractiveShell.clear_instance()


def run(shell, cell):
    done = shell.run_cell(cell)
    done.raise_error()
    return done.result


def fails(shell, cell):
    """The error of a cell that fails: one line."""
    done = shell.run_cell(cell)
    error = done.error_in_exec or done.error_before_exec
    assert isinstance(error, UsageError), error
    assert "\n" not in str(error)
    return str(error)


# --- the magic ---


def test_a_cell_is_a_query(shell):
    query = run(shell, "%%tq\nSELECT user * 2 AS double\nFROM events\nWHERE user > 1;\n")
    assert isinstance(query, tq.Query)
    assert query.to_arrow().to_pydict() == {"double": [4]}
    assert query.session is shell.user_ns["session"]
    assert "double" in query._repr_html_()


@pytest.mark.parametrize("line", ["mine", "mine <<", "--session session mine", "mine -s session"])
def test_a_named_query_is_kept_in_a_variable(shell, line):
    query = run(shell, f"%%tq {line}\nSELECT user FROM events")
    assert shell.user_ns["mine"] is query
    assert run(shell, "mine.count()") == 2


def test_a_line_is_a_query(shell):
    assert run(shell, "q = %tq SELECT user FROM events\nq.count()") == 2
    other = tq.Session()
    other.register_table("events", pa.table({"z": [1, 2, 3]}))
    shell.user_ns["other"] = other
    assert run(shell, "q = %tq --session other SELECT * FROM events\nq.count()") == 3


def test_braces_and_dollars_are_those_of_sql(shell):
    assert run(shell, "q = %tq SELECT '{user}' AS a, '$user' AS b\nq").head().to_pylist() == [
        {"a": "{user}", "b": "$user"}
    ]
    assert run(shell, "%%tq\nSELECT '{user}' AS a").head().to_pylist() == [{"a": "{user}"}]


def test_the_session_is_the_one_that_there_is(shell, tmp_path, monkeypatch):
    del shell.user_ns["session"]
    session = tq.Session()
    session.register_table("t", pa.table({"x": [1]}))
    shell.user_ns["mine"] = session
    assert run(shell, "%%tq\nSELECT * FROM t").session is session
    # Two names of one session leave nothing to choose.
    shell.user_ns["same"] = session
    assert run(shell, "%%tq\nSELECT * FROM t").session is session
    shell.user_ns["other"] = tq.Session()
    told = fails(shell, "%%tq\nSELECT * FROM t")
    assert (
        told == "there are several sessions (mine, other, same); say which one: %%tq --session mine"
    )
    for name in ("mine", "same", "other"):
        del shell.user_ns[name]
    # Without any, paths are tables all the same.
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    first = run(shell, "%%tq\nSELECT * FROM 'rows.parquet'")
    assert first.count() == 3
    assert run(shell, "%%tq\nSELECT 1 AS one").session is first.session


MISTAKES = {
    "%%tq\nSELECT usr FROM events": 'QueryError: unknown column "usr"; did you mean "user"',
    "%%tq\nSELECT * FROM event": 'TableNotFoundError: unknown table "event"; did you mean "events"',
    "%%tq\nDROP TABLE events": "QueryError: DROP is not allowed: a query only reads",
    "%%tq SELECT * FROM events\n\n": "the SQL goes on the lines below %%tq; usage: %%tq [name]",
    "%%tq --sesion s\nSELECT 1": "unrecognized arguments: --sesion; usage: %%tq [name]",
    "%%tq --session\nSELECT 1": "argument -s/--session: expected one argument; usage",
    "%%tq --session nope\nSELECT 1": "--session nope: this must be a variable with a tensorquery.Session, and nope is not defined; sessions are session",
    "%%tq --session pa\nSELECT 1": "and pa is a module; sessions are session",
    "%%tq 2nd\nSELECT 1": "'2nd' is no name for a variable",
    "%%tq class\nSELECT 1": "'class' is no name for a variable",
    "%%tq 'mine\nSELECT 1": 'No closing quotation in "\'mine"',
    "%%tq\n  \n": "there is no SQL; usage: %%tq [name] [--session variable], and a SELECT statement below",
    "%tq": "there is no SQL",
}


@pytest.mark.parametrize("cell", MISTAKES)
def test_a_mistake_is_said_in_one_line(shell, cell):
    assert MISTAKES[cell] in fails(shell, cell)


def test_the_extension_can_be_loaded_twice_and_unloaded(shell):
    shell.run_line_magic("load_ext", "tensorquery")
    tq.load_ipython_extension(shell)
    assert len(names(shell, "session.table('ev")) == 1
    shell.run_line_magic("unload_ext", "tensorquery")
    assert shell.find_cell_magic("tq") is None
    assert shell.find_line_magic("tq") is None
    assert names(shell, "session.table('ev") == []
    tq.unload_ipython_extension(shell)
    shell.run_line_magic("load_ext", "tensorquery")
    assert run(shell, "%%tq\nSELECT 1 AS one").count() == 1


# --- names ---


def names(shell, cell):
    """The completions that the tab key offers at ``|``, or at the end: the cell up to and with each."""
    at = cell.find("|")
    cell, at = (cell, len(cell)) if at < 0 else (cell.replace("|", ""), at)
    with provisionalcompleter():
        found = list(shell.Completer.completions(cell, at))
    return sorted({cell[: one.start] + one.text for one in found})


COMPLETED = {
    "%%tq\nSELECT * FROM ev": ["%%tq\nSELECT * FROM events"],
    "%%tq\nSELECT * FROM events JOIN w": ['%%tq\nSELECT * FROM events JOIN "Weird name"'],
    "%%tq\nSELECT us|\nFROM events": ["%%tq\nSELECT usage", "%%tq\nSELECT user"],
    # Before there is a FROM.
    "%%tq\nSELECT use": ["%%tq\nSELECT user"],
    "%%tq\nSELECT user, | FROM events": [f"%%tq\nSELECT user, {name}" for name in ('"Item"', "usage", "user")],
    "%%tq\nSELECT e.it| FROM events AS e": ['%%tq\nSELECT e."Item"'],
    "%%tq\nSELECT events.| FROM events": [f"%%tq\nSELECT events.{name}" for name in ('"Item"', "usage", "user")],
    '%%tq\nSELECT "It| FROM events': ['%%tq\nSELECT "Item"'],
    "%%tq mine --session session\nSELECT x.usa| FROM events x": ["%%tq mine --session session\nSELECT x.usage"],
    "x = %tq SELECT * FROM eve": ["x = %tq SELECT * FROM events"],
    "session.table('ev": ["session.table('events"],
    'session.deregister("ev': ['session.deregister("events'],
    "query.select(['us": ["query.select(['usage", "query.select(['user"],
    "query.select(['user', 'I": ["query.select(['user', 'Item"],
}  # fmt: skip


@pytest.mark.parametrize("cell", COMPLETED)
def test_names_are_completed(shell, cell):
    assert names(shell, cell) == COMPLETED[cell]


@pytest.mark.parametrize(
    "cell",
    [
        "%%tq\nSELECT 'us| FROM events",
        "%%tq --session nope\nSELECT us| FROM events",
        "%%tq\nSELECT nothing.us| FROM events",
        "unknown.table('ev",
        "query.select(filters='us",
        "pa.table('ev",
    ],
)
def test_no_names_are_made_up(shell, cell):
    start = cell.partition("|")[0]
    ends = [name.removeprefix(start) for name in names(shell, cell)]
    assert not [end for end in ends if end in ("events", "ents", "user", "er", "age", "usage")]


def test_python_is_completed_as_ever(shell):
    assert "session.table" in names(shell, "session.ta")
    assert "query.count" in names(shell, "query.cou")


def test_columns_of_views_are_completed(shell):
    session = shell.user_ns["session"]
    session.register_view("v", "SELECT user AS boss FROM events")
    assert names(shell, "%%tq\nSELECT bo| FROM v") == ["%%tq\nSELECT boss"]
