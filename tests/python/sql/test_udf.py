"""Promise: a Python function in SQL is called with the types that it declares, wherever the query runs."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import support
import tensorquery as tq
import udf_functions
from tensorquery.sql import functions
from udf_tables import ROWS, TABLE, delivered, rows, session_over


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return support.write_parquet(tmp_path_factory.mktemp("udf"), TABLE, files=3, row_group=20)


@pytest.fixture
def session(folder):
    return session_over(folder)


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
    # A second registration of one function changes nothing.
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
