"""Promise: an error of a Python function in SQL carries the function's name and its own traceback, wherever it runs."""

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq
import udf_functions
from effort import METHODS
from udf_tables import ROWS, TABLE, delivered, rows, session_over


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return support.write_parquet(tmp_path_factory.mktemp("udf"), TABLE, files=3, row_group=20)


@pytest.fixture
def session(folder):
    return session_over(folder)


def identity(array):
    return array


def boom(x):
    if 17 in x.to_pylist():
        raise ValueError("seventeen is not a number I like")
    return x


CLAUSES = {
    "select": "SELECT boom(id) AS y FROM {table}",
    "where": "SELECT id AS y FROM {table} WHERE boom(id) >= 0",
    "join": "SELECT a.id AS y FROM {table} a JOIN m b ON boom(a.id) = b.id",
    "build side": "SELECT a.id AS y FROM {table} a JOIN (SELECT id FROM m WHERE boom(id) > -1) b ON a.id = b.id",
}


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("table", ["t", "m"])
def test_an_exception_keeps_its_traceback(session, table, clause):
    session.register_udf("boom", boom, ["int64"], "int64")
    sql = CLAUSES[clause].format(table=table)
    query = session.sql(sql)
    acts = [query.to_arrow, lambda: delivered(session, sql)]
    for act in acts if clause == "select" else [*acts, query.count]:
        with pytest.raises(tq.DataError) as caught:
            act()
        message = str(caught.value)
        assert "the Python function boom failed" in message
        assert "ValueError: seventeen is not a number I like" in message
        assert "test_udf_errors.py" in message
        assert "ticket" not in message
        cause = caught.value.__cause__
        assert type(cause) is ValueError
        names = []
        traceback = cause.__traceback__
        while traceback is not None:
            names.append(traceback.tb_frame.f_code.co_name)
            traceback = traceback.tb_next
        assert names[-1] == "boom"


def test_an_exception_through_the_arrow_interface_is_told(session):
    session.register_udf("boom", boom, ["int64"], "int64")
    with pytest.raises(Exception, match="function boom failed.*ValueError: seventeen") as caught:
        pa.table(session.sql("SELECT boom(id) AS y FROM t"))
    assert not isinstance(caught.value, SystemError)


@pytest.mark.slow
@pytest.mark.parametrize("context", METHODS)
@pytest.mark.parametrize("function", [boom, udf_functions.fails_on_17])
def test_an_exception_in_a_worker_shows_its_traceback(session, context, function):
    session.register_udf("boom", function, ["int64"], "int64")
    with pytest.raises(tq.DataError) as caught:
        delivered(
            session, "SELECT boom(id) AS y FROM t", num_workers=2, multiprocessing_context=context
        )
    text = str(caught.value)
    assert "the Python function boom failed" in text
    assert "ValueError: seventeen is not a number I like" in text
    assert f"in {function.__name__}" in text
    assert "Traceback (most recent call last)" in text
    assert "direct cause" in text


def test_exceptions_of_this_package_are_told_apart_from_its_own(session):
    def raises(x):
        raise tq.TableNotFoundError("no such vocabulary")

    def imports(x):
        import no_such_package_of_anybody  # noqa: F401

    session.register_udf("raises", raises, ["int64"], "int64")
    session.register_udf("imports", imports, ["int64"], "int64")
    with pytest.raises(tq.DataError, match="function raises failed.*no such vocabulary") as caught:
        session.sql("SELECT raises(id) FROM t").to_arrow()
    assert isinstance(caught.value.__cause__, tq.TableNotFoundError)
    with pytest.raises(tq.DataError, match="function imports failed.*no_such_package") as caught:
        session.sql("SELECT imports(id) FROM t").to_arrow()
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: x[:-1], r"the function f returned \d+ values for \d+ rows"),
        (lambda x: pa.chunked_array([x, x]), r"returned \d+ values for \d+ rows"),
        (lambda x: x.cast(pa.int32()), "returned Int32, but was registered with return_type Int64"),
        (lambda x: pa.array(["a"] * len(x)), "returned Utf8, but was registered with"),
        (lambda x: x.to_pylist(), "the function f returned list, which is no Arrow array"),
        (lambda x: None, "the function f returned NoneType"),
        (lambda x: x.to_numpy().reshape(-1, 1), "the function f returned ndarray"),
        (lambda x, y: x, "function f failed.*TypeError"),
        (lambda x: np.full(len(x), 0.5), "function f failed.*Arrow"),
    ],
)
@pytest.mark.parametrize("clause", ["SELECT f(id) AS y FROM t", "SELECT id FROM t WHERE f(id) > 1"])
def test_wrong_answers(session, answer, message, clause):
    session.register_udf("f", answer, ["int64"], "int64")
    for act in (session.sql(clause).to_arrow, lambda: delivered(session, clause, "y")):
        with pytest.raises(tq.DataError, match=message):
            act()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("f(id)", r"f\(Int64, Utf8\) takes 2 arguments, got 1"),
        ("f(id, s, s)", r"takes 2 arguments, got 3"),
        ("f()", r"takes 2 arguments, got 0"),
        ("f(x, s)", r"argument 1 of the function f\(Int64, Utf8\) is Float64.*CAST"),
        ("f(id, id)", r"argument 2 of .* is Int64, which does not become Utf8"),
        ("g(id)", "'g'.*"),
    ],
)
def test_wrong_arguments(session, call, message):
    session.register_udf("f", lambda x, s: x, ["int64", "utf8"], "int64")
    with pytest.raises(tq.QueryError, match=message) as caught:
        session.sql(f"SELECT {call} FROM t")
    assert "ticket" not in str(caught.value)
    assert "External" not in str(caught.value)


def test_an_overflowing_argument_is_an_error(session):
    session.register_udf("f", identity, ["int8"], "int8")
    with pytest.raises(tq.DataError, match="(?i)int8"):
        session.sql("SELECT f(id) AS y FROM t").to_arrow()


def test_a_failing_function_is_no_bad_file(session):
    session.register_udf("boom", boom, ["int64"], "int64")
    with pytest.raises(tq.DataError, match="the Python function boom failed"):
        delivered(session, "SELECT boom(id) AS y FROM t", on_error="skip")


def test_pruning_asks_no_function_about_made_up_rows(session):
    seen = []

    def look(x):
        seen.extend(x.to_pylist())
        return x

    session.register_udf("look", look, ["int64"], "int64")
    queries = [
        "SELECT id AS y FROM t WHERE look(id) > 100",
        "SELECT id AS y FROM t WHERE look(id) > 100 AND id > 150",
        "SELECT id AS y FROM t WHERE look(id) IN (101, 170) OR look(id) IS NULL",
        "SELECT id AS y FROM t WHERE NOT (look(id) <= 100)",
    ]
    for sql in queries:
        query = session.sql(sql)
        query.explain()
        seen.clear()
        tq.create_dataloader(query, split_rows=20)
        planned = list(seen)
        found = rows(query)["y"]
        assert sorted(delivered(None, query)) == sorted(found)
        assert found
        assert planned == [], f"{sql} was planned with rows that are in no file"
        assert set(seen) <= set(range(ROWS))


def test_what_a_planner_asks_about_a_null_breaks_no_function(session):
    def no_nulls(x):
        if x.null_count:
            raise ValueError("a null")
        return x

    session.register_udf("no_nulls", no_nulls, ["int64"], "int64")
    expected = list(range(101, ROWS))
    for join in ("LEFT JOIN", "JOIN"):
        sql = f"SELECT a.id AS y FROM t a {join} m b ON a.id = b.id WHERE no_nulls(a.id) > 100"
        assert sorted(rows(session.sql(sql))["y"]) == expected
        assert sorted(delivered(session, sql)) == expected
