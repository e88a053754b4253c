"""Promise: a Python function in SQL is called with what it was declared for, wherever the query runs, and what it does
wrong is told with its name and its own traceback.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import support
import tensorquery as tq
import udf_functions
from tensorquery.sql import functions

ROWS = 240
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "small": pa.array([i % 7 for i in range(ROWS)], pa.int16()),
        "x": pa.array([None if i % 5 == 0 else i / 2 for i in range(ROWS)], pa.float64()),
        "s": pa.array([None if i % 11 == 0 else "w" * (i % 4) for i in range(ROWS)]),
        "l": pa.array([[i, None, -i][: i % 4] for i in range(ROWS)], pa.list_(pa.int64())),
        "r": pa.array([{"a": i, "b": str(i)} for i in range(ROWS)]),
        "d": pa.array([f"c{i % 3}" for i in range(ROWS)]).dictionary_encode(),
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return support.write_parquet(tmp_path_factory.mktemp("udf"), TABLE, files=3, row_group=20)


@pytest.fixture
def session(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_table("m", TABLE)
    return session


def rows(query):
    return query.to_arrow().to_pydict()


def delivered(session, sql, column="y", **options):
    loader, _ = tq.create_dataloader(
        sql, session=session, batch_size=13, split_rows=20, output_format="dict", **options
    )
    return [value for batch in loader for value in batch[column]]


# ------------------------------------------------------------------------------------------------
# Where a function may stand, and what it is given.


@pytest.mark.parametrize("table", ["t", "m"])
def test_in_every_clause(session, table):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    ids = list(range(ROWS))
    assert rows(session.sql(f"SELECT twice(id) AS y FROM {table} ORDER BY id"))["y"] == [
        2 * i for i in ids
    ]
    where = session.sql(f"SELECT id FROM {table} WHERE twice(id) >= 470 AND id < 239 ORDER BY id")
    assert rows(where)["id"] == [235, 236, 237, 238]
    joined = session.sql(f"SELECT a.id, b.id AS c FROM {table} a JOIN m b ON twice(a.id) = b.id")
    assert Counter(rows(joined)["c"]) == Counter(range(0, ROWS, 2))
    grouped = session.sql(
        f"SELECT twice(small) AS k, sum(twice(id)) AS total FROM {table} GROUP BY twice(small) ORDER BY k"
    )
    assert rows(grouped) == {
        "k": [0, 2, 4, 6, 8, 10, 12],
        "total": [sum(2 * i for i in ids if i % 7 == k) for k in range(7)],
    }
    nested = session.sql(f"SELECT twice(twice(id) + 1) AS y FROM {table} WHERE id = 3")
    assert rows(nested)["y"] == [14]
    case = session.sql(f"SELECT CASE WHEN id > 1 THEN twice(id) END AS y FROM {table} WHERE id < 3")
    assert sorted(rows(case)["y"], key=str) == [4, None, None]


def test_two_functions(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    session.register_udf("add", pc.add, ["int64", "int64"], "int64")
    found = session.sql("SELECT add(twice(id), small) AS y FROM t ORDER BY id")
    assert rows(found)["y"] == [2 * i + i % 7 for i in range(ROWS)]


def identity(array):
    return array


@pytest.mark.parametrize("column", TABLE.column_names)
def test_every_type_arrives_as_declared_and_goes_back(session, column):
    kind = TABLE.schema.field(column).type
    seen = []

    def look(array):
        seen.append(array)
        return array

    session.register_udf("look", look, [kind], kind)
    found = session.sql(f"SELECT look({column}) AS y FROM m ORDER BY id").to_arrow()
    assert found.column("y").to_pylist() == TABLE.column(column).to_pylist()
    assert found.schema.field("y").type == kind
    assert {array.type for array in seen} == {kind}
    assert all(isinstance(array, pa.Array) for array in seen)
    assert sum(len(array) for array in seen) == ROWS


def test_nulls_arrive_and_may_be_returned(session):
    session.register_udf("or_zero", lambda x: pc.fill_null(x, 0), ["float64"], "float64")
    session.register_udf("odd", lambda i: pc.if_else(pc.equal(pc.bit_wise_and(i, 1), 1), i, None),
                         ["int64"], "int64")  # fmt: skip
    found = rows(session.sql("SELECT or_zero(x) AS a, odd(id) AS b FROM t ORDER BY id"))
    assert found["a"] == [value or 0 for value in TABLE.column("x").to_pylist()]
    assert found["b"] == [i if i % 2 else None for i in range(ROWS)]


def test_arguments_are_cast_to_the_declared_types(session):
    types = []

    def note(*arrays):
        types.append([array.type for array in arrays])
        return arrays[0]

    declared = [pa.float64(), pa.int32(), pa.float32(), pa.large_string()]
    session.register_udf("note", note, declared, "double")
    session.sql("SELECT note(small, 5, 0.5, d) AS y FROM m").to_arrow()
    assert types
    assert all(found == declared for found in types)


def test_constants_arrive_as_arrays_of_the_batchs_length(session):
    lengths = set()

    def add(x, y):
        lengths.add((len(x), len(y)))
        return pc.add(x, y)

    session.register_udf("add2", add, ["int64", "int64"], "int64")
    assert rows(session.sql("SELECT add2(id, 1000) AS y FROM m"))["y"][0] == 1000
    assert lengths == {(ROWS, ROWS)}
    # Of constants alone, the value is found once, when the query is planned.
    assert rows(session.sql("SELECT add2(1, 2) AS y FROM m"))["y"] == [3] * ROWS
    assert lengths == {(ROWS, ROWS), (1, 1)}


def test_no_rows_call_nothing(session):
    def never(x):
        raise AssertionError("called without rows")

    session.register_udf("never", never, ["int64"], "int64")
    assert session.sql("SELECT never(id) AS y FROM m WHERE id < 0").to_arrow().num_rows == 0


def test_answers_of_many_kinds(session):
    class Capsule:
        def __init__(self, array):
            self.array = array

        def __arrow_c_array__(self, requested_schema=None):
            return self.array.__arrow_c_array__(requested_schema)

    answers = {
        "chunked": lambda x: pa.chunked_array([x[:3], x[3:]]),
        "empty_chunk": lambda x: pa.chunked_array([x, x[:0]]),
        "sliced": lambda x: pa.concat_arrays([x, x])[len(x) :],
        "capsule": Capsule,
        "numpy": lambda x: x.to_numpy(),
        "numpy_int32": lambda x: x.to_numpy().astype(np.int32),
    }
    for name, answer in answers.items():
        session.register_udf(name, answer, ["int64"], "int64")
        found = session.sql(f"SELECT {name}(id) AS y FROM m")
        assert rows(found)["y"] == list(range(ROWS)), name


def test_answers_outlive_the_memory_that_python_gave(session):
    buffers = []

    def reuse(x):
        if not buffers:
            buffers.append(np.empty(len(x), np.int64))
        buffers[0][: len(x)] = x.to_numpy()
        return pa.array(buffers[0][: len(x)])

    session.register_udf("reuse", reuse, ["int64"], "int64")
    found = session.sql("SELECT reuse(id) AS y FROM m").to_arrow()
    buffers[0][:] = -1
    assert found.column("y").to_pylist() == list(range(ROWS))


def test_without_pyarrow_a_function_gets_the_capsule_interface(session, monkeypatch):
    seen = []

    class Answer:
        def __init__(self, given):
            self.given = given

        def __arrow_c_array__(self, requested_schema=None):
            return self.given.__arrow_c_array__(requested_schema)

    def look(given):
        seen.append(given)
        return Answer(given)

    session.register_udf("twice_named", look, ["int64"], "int64")
    real = functions.Function.call

    def without_pyarrow(self, arrays):
        monkeypatch.setattr(self, "_pyarrow", None)
        return real(self, arrays)

    monkeypatch.setattr(functions.Function, "call", without_pyarrow)
    assert rows(session.sql("SELECT twice_named(id) AS y FROM m"))["y"] == list(range(ROWS))
    assert seen
    assert all(not isinstance(given, pa.Array) and len(given) == ROWS for given in seen)


# ------------------------------------------------------------------------------------------------
# Registering.


def test_functions_are_listed(session):
    session.register_udf(
        "b", identity, ["timestamp[us, tz=UTC]", "list<float32>"], "utf8", "stable"
    )
    session.register_udf("a", identity, [pa.int8()], "bool")
    assert session.functions == [
        ("a", ("Int8",), "Boolean", "immutable"),
        ("b", ('Timestamp(µs, "UTC")', "List(Float32)"), "Utf8", "stable"),
    ]
    assert session.functions[0].input_types == ("Int8",)
    session.deregister_udf("b")
    assert [function.name for function in session.functions] == ["a"]
    with pytest.raises(tq.ConfigError, match=r"unknown function \"aa\"; did you mean \"a\""):
        session.deregister_udf("aa")
    with pytest.raises(tq.QueryError, match="b"):
        session.sql("SELECT b(id, id) FROM t")
    assert [table.name for table in session.tables] == ["m", "t"]


@pytest.mark.parametrize("name", ["abs", "SUM", "row_number", "random", "coalesce"])
def test_a_built_in_function_is_not_replaced(session, name):
    with pytest.raises(tq.ConfigError, match=f"{name} is a built-in function"):
        session.register_udf(name, identity, ["int64"], "int64")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("f", 3, ["int64"], "int64"), "fn=3 is a int and cannot be called"),
        (("", identity, ["int64"], "int64"), "non-empty string"),
        ((None, identity, ["int64"], "int64"), "non-empty string"),
        (("f", identity, [], "int64"), "no input_types"),
        (("f", identity, "int64", "int64"), "a list with a type for each argument"),
        (("f", identity, ["int46"], "int64"), r"input_types\[0\]=\"int46\" is no type.*int64"),
        (("f", identity, ["int64"], "intt64"), 'return_type="intt64" is no type; did you mean'),
        (("f", identity, ["int64"], np.int64), "return_type is a type; a type is a name"),
        (("f", identity, ["int64"], "int64", "imutable"), "did you mean 'immutable'"),
    ],
)
def test_malformed_registrations(session, arguments, message):
    with pytest.raises(tq.ConfigError, match=message):
        session.register_udf(*arguments)


def test_a_query_keeps_the_function_that_it_was_made_with(session):
    session.register_udf("f", lambda x: x, ["int64"], "int64")
    session.register_view("v", "SELECT id, f(id) AS y FROM t")
    before = session.sql("SELECT f(id) AS y FROM t WHERE id = 7")
    of_view = session.sql("SELECT y FROM v WHERE id = 7")
    session.register_udf("f", lambda x: pc.negate(x), ["int64"], "int64")
    after = session.sql("SELECT f(id) AS y FROM t WHERE id = 7")
    for _ in range(2):
        assert rows(before) == {"y": [7]}
        assert rows(before.select(["y"], "y > 0")) == {"y": [7]}
        assert rows(of_view) == {"y": [7]}
        assert rows(session.sql("SELECT y FROM v WHERE id = 7")) == {"y": [7]}
        assert rows(after) == {"y": [-7]}
        assert rows(after.select(["y"], "y < 0")) == {"y": [-7]}
        for query, expected in ((before, [7]), (after, [-7]), (of_view, [7])):
            assert delivered(None, query) == expected
        if session.functions:
            session.deregister_udf("f")
    with pytest.raises(tq.QueryError):
        session.sql("SELECT f(id) AS y FROM t")
    assert rows(session.sql("SELECT y FROM v WHERE id = 7")) == {"y": [7]}


def test_one_name_for_two_functions_in_a_query_is_refused(session):
    session.register_udf("f", lambda x: x, ["int64"], "int64")
    session.register_view("v", "SELECT id, f(id) AS y FROM t")
    one = session.sql("SELECT f(id) AS y FROM t")
    session.register_udf("f", lambda x: pc.negate(x), ["int64"], "int64")
    with pytest.raises(tq.QueryError, match='"f" means two functions here'):
        session.sql("SELECT f(y) AS z FROM v")
    with pytest.raises(tq.ConfigError, match='call different functions of the name "f"'):
        tq.create_dataloader(tq.mix([(one, 1), (session.sql("SELECT f(id) AS y FROM t"), 1)]))
    # The same function again is no other one.
    session.register_udf("f", lambda x: x, ["int64"], "int64")
    assert rows(session.sql("SELECT f(y) AS z FROM v WHERE id = 1")) == {"z": [1]}


def test_a_volatile_function_runs_once_for_a_loader(session, tmp_path):
    def noise(x):
        return pa.array(np.random.default_rng().random(len(x)))

    session.register_udf("noise", noise, ["int64"], "float64", "volatile")
    query = session.sql("SELECT id, noise(id) AS y FROM t")
    first, second = rows(query)["y"], rows(query)["y"]
    assert first != second
    with pytest.raises(tq.NotShardableError, match=r"noise\(\) is volatile"):
        tq.create_dataloader(query, stage="never")
    drawn = [
        [
            batch["y"]
            for rank in range(2)
            for batch in tq.create_dataloader(
                query, stage_dir=tmp_path, output_format="dict", rank=rank, world_size=2
            )[0]
        ]
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    session.register_udf("this_day", identity, ["int64"], "int64", "stable")
    with pytest.raises(tq.NotShardableError, match=r"this_day\(\) is stable"):
        tq.create_dataloader("SELECT this_day(id) AS y FROM t", session=session, stage="never")


# ------------------------------------------------------------------------------------------------
# Loaders: in this process and in workers.

CONTEXTS = ["fork", "spawn", "forkserver"]
WORKERS = [{"num_workers": 0}] + [
    {"num_workers": 2, "multiprocessing_context": context} for context in CONTEXTS
]


def name_of(options):
    return options.get("multiprocessing_context", "in process")


@pytest.mark.parametrize(
    ("options", "table"),
    [(WORKERS[0], "t"), (WORKERS[0], "m"), (WORKERS[1], "m"), *((each, "v") for each in WORKERS)],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_each_row_once_over_ranks_and_workers(session, options, table):
    offset = 1000
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    # A closure, and one that names a function of this module.
    session.register_udf("shift", lambda x: identity(pc.add(x, offset)), ["int64"], "int64")
    session.register_view("v", "SELECT *, twice(id) AS unused FROM t")
    sql = f"SELECT shift(twice(id)) AS y FROM {table} WHERE twice(id) % 6 <> 0"
    expected = Counter(2 * i + offset for i in range(ROWS) if i % 3)
    for world_size in (1, 3) if options["num_workers"] else (1, 2, 3):
        found = Counter()
        for rank in range(world_size):
            found.update(
                delivered(session, sql, rank=rank, world_size=world_size, shuffle=True, **options)
            )
        assert found == expected, world_size


def test_rows_come_in_file_order(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    assert delivered(session, "SELECT twice(id) AS y FROM t") == [2 * i for i in range(ROWS)]


def test_a_function_in_a_join_condition_of_a_loader(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    sql = "SELECT a.id AS y FROM t a JOIN m b ON twice(a.small) = b.id"
    assert sorted(delivered(session, sql)) == list(range(ROWS))


def test_what_is_importable_needs_no_cloudpickle(session, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    again = pickle.loads(
        pickle.dumps(functions.Function("f", udf_functions.twice, ["int64"], "int64"))
    )
    assert again._fn is udf_functions.twice
    with pytest.raises(ImportError, match=r"the function f .*pip install 'tensorquery\[udf\]'"):
        pickle.dumps(functions.Function("f", lambda x: x, ["int64"], "int64"))


def test_what_no_pickle_takes_is_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    with pytest.raises(tq.ConfigError, match="the function f cannot be sent .*lock"):
        pickle.dumps(functions.Function("f", locked, ["int64"], "int64"))


_MAIN = """
import sys
sys.path[:0] = {path!r}
import pyarrow.compute as pc
import tensorquery as tq

OFFSET = 5

class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return pc.multiply(x, self.factor)

if __name__ == "__main__":
    def plus(x):
        return pc.add(x, OFFSET)

    session = tq.Session()
    session.register_parquet("t", {folder!r})
    session.register_udf("plus", plus, ["int64"], "int64")
    session.register_udf("scale", Scale(3), ["int64"], "int64")
    loader, _ = tq.create_dataloader(
        "SELECT plus(scale(id)) AS y FROM t", session=session, num_workers=2, batch_size=50,
        multiprocessing_context={context!r})
    print(sum(int(batch["y"].sum()) for batch in loader))
"""


def run(script, **options):
    return subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, **options
    )


@pytest.mark.parametrize("context", CONTEXTS)
def test_functions_of_the_script_reach_its_workers(tmp_path, folder, context):
    script = tmp_path / "train.py"
    script.write_text(_MAIN.format(path=sys.path, folder=folder, context=context))
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(sum(3 * i + 5 for i in range(ROWS)))]


# ------------------------------------------------------------------------------------------------
# What goes wrong.


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
        assert "test_udf.py" in message
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


@pytest.mark.parametrize("context", CONTEXTS)
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


# ------------------------------------------------------------------------------------------------
# Checkpoints.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_where_it_was(session, workers):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    options = {"rank": 0, "world_size": 1, "shuffle": True, "num_workers": workers}
    sql = "SELECT twice(id) AS y FROM t WHERE twice(id) > 20"
    whole = delivered(session, sql, **options)

    def loader_of():
        loader, _ = tq.create_dataloader(
            sql, session=session, batch_size=13, split_rows=20, output_format="dict", **options
        )
        return loader

    loader = loader_of()
    iterator = iter(loader)
    found = [value for _ in range(4) for value in next(iterator)["y"]]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    again = loader_of()
    again.load_state_dict(state)
    found += [value for batch in again for value in batch["y"]]
    assert found == whole


def test_a_state_of_another_function_is_refused_by_its_name(session):
    def state_of(fn, name="f"):
        session.register_udf(name, fn, ["int64"], "int64")
        loader, _ = tq.create_dataloader(f"SELECT {name}(id) AS y FROM t", session=session)
        return loader, loader.state_dict()

    _, state = state_of(lambda x: pc.add(x, 1))
    other, _ = state_of(lambda x: pc.add(x, 2))
    with pytest.raises(tq.CheckpointMismatchError, match="the Python function f"):
        other.load_state_dict(state)
    same, _ = state_of(lambda x: pc.add(x, 1))
    same.load_state_dict(state)
    # A state of a query without functions says nothing of them.
    plain, _ = tq.create_dataloader("SELECT id FROM t", session=session)
    assert "functions" not in plain.state_dict()["parts"]


def test_a_plan_cache_is_not_that_of_another_function(folder, tmp_path):
    def read(fn):
        session = tq.Session(plan_cache=tmp_path / "plans")
        session.register_parquet("t", folder)
        session.register_udf("f", fn, ["int64"], "int64")
        return sorted(delivered(session, "SELECT f(id) AS y FROM t WHERE f(id) > 10"))

    expected = list(range(11, ROWS))
    assert read(lambda x: x) == expected
    assert read(lambda x: x) == expected
    assert read(lambda x: pc.add(x, 1)) == [11, *[i + 1 for i in expected]]


# ------------------------------------------------------------------------------------------------
# Threads, the GIL, and the end.


def test_a_consumer_that_holds_the_gil_does_not_wait_for_itself(session):
    # `ctypes.PyDLL` calls keep the GIL, as some Arrow libraries do while they fetch.
    import ctypes

    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    capsule = session.sql("SELECT twice(id) AS y FROM t").__arrow_c_stream__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    class Stream(ctypes.Structure):
        _fields_ = [
            ("get_schema", ctypes.c_void_p),
            ("get_next", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ]

    class Array(ctypes.Structure):
        _fields_ = [("length", ctypes.c_int64), ("rest", ctypes.c_int64 * 9)]

    address = pointer(capsule, b"arrow_array_stream")
    array = Array()
    assert Stream.from_address(address).get_next(address, ctypes.addressof(array)) == 0
    assert array.length > 0


def test_threads_of_the_user_may_query_while_a_function_runs(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    found = []

    def work():
        found.extend(rows(session.sql("SELECT twice(id) AS y FROM t"))["y"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(found) == Counter({2 * i: 4 for i in range(ROWS)})


def test_a_function_may_query_itself(session):
    session.register_table("small", pa.table({"one": [1]}))

    def ask(x):
        one = tq.Session()
        one.register_table("small", pa.table({"one": [1]}))
        return pc.add(x, one.sql("SELECT one FROM small").to_arrow().column("one")[0].as_py())

    session.register_udf("ask", ask, ["int64"], "int64")
    assert sorted(delivered(session, "SELECT ask(id) AS y FROM t")) == list(range(1, ROWS + 1))


_SLEEPS = """
import signal, sys, time
sys.path[:0] = {path!r}
import tensorquery as tq

def slow(x):
    print("sleeping\\n", end="", flush=True)  # in one piece, whoever else sleeps
    time.sleep({seconds})
    return x

session = tq.Session()
session.register_parquet("t", {folder!r})
session.register_udf("slow", slow, ["int64"], "int64")
query = session.sql("SELECT slow(id) AS y FROM t WHERE slow(id) >= 0")
try:
    {act}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "act",
    [
        "query.to_arrow()",
        "query.count()",
        "next(iter(tq.create_dataloader(query)[0]))",
        "list(tq.create_dataloader(query, num_workers=0)[0])",
    ],
)
def test_ctrl_c_while_a_function_sleeps(tmp_path, folder, act):
    script = tmp_path / "train.py"
    script.write_text(_SLEEPS.format(path=sys.path, folder=folder, act=act, seconds=120))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "sleeping\n"
    time.sleep(0.3)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=240)
    assert "interrupted" in text
    assert process.returncode == 0
    assert time.monotonic() - begun < 60


def test_the_interpreter_ends_while_functions_run(tmp_path, folder):
    script = tmp_path / "train.py"
    act = "loader = tq.create_dataloader(query, split_rows=5)[0]; it = iter(loader); next(it)"
    script.write_text(_SLEEPS.format(path=sys.path, folder=folder, act=act, seconds=0.01))
    for _ in range(5):
        done = run(script)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_while_functions_run_calls_them_too(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    sql = "SELECT twice(id) AS y FROM t"
    loader, _ = tq.create_dataloader(sql, session=session, batch_size=5, split_rows=5)
    iterator = iter(loader)
    next(iterator)
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if len(rows(session.sql(sql))["y"]) == ROWS else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sum(len(batch["y"]) for batch in iterator) == ROWS - 5


def test_the_docs_page_runs(tmp_path):
    import re

    page = (Path(__file__).parents[3] / "docs" / "functions.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 3
    script = tmp_path / "page.py"
    head = f"import sys\nsys.path[:0] = {[str(Path(path).resolve()) for path in sys.path]!r}\n"
    script.write_text(head + textwrap.dedent("\n".join(snippets)))
    done = run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
