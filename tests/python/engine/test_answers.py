"""The comparison behind `test_any_sql.py` finds a lost row, a repeated one, and any changed value."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from answers import assert_same_answer
from support import COLUMNS, random_table

KINDS = [*COLUMNS]


@pytest.fixture(params=["id", "k", "v", *KINDS])
def table(request):
    """Rows in two chunks with one column of the kind, and a number that makes them different."""
    rng = np.random.default_rng(len(request.param))
    table = random_table(rng, 200, [request.param] if request.param in COLUMNS else [])
    table = table.select(list(dict.fromkeys(["k", request.param])))
    return pa.concat_tables([table.slice(0, 70), table.slice(70)])


def shuffled(table, seed=1):
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))


def without(table, place):
    return pa.concat_tables([table.slice(0, place), table.slice(place + 1)])


def test_a_table_is_itself_in_any_order(table):
    assert_same_answer(table, table, ordered=True)
    assert_same_answer(shuffled(table), table)


def test_another_order_is_seen_where_it_counts(table):
    with pytest.raises(AssertionError, match="another order: row"):
        assert_same_answer(shuffled(table), table, ordered=True)


@pytest.mark.parametrize("place", [0, 69, 199])
def test_a_lost_row_is_found(table, place):
    with pytest.raises(AssertionError, match=r"0 too many.*1 missing, such as \[\{"):
        assert_same_answer(shuffled(without(table, place)), table)


@pytest.mark.parametrize("place", [0, 70, 199])
def test_a_repeated_row_is_found(table, place):
    more = pa.concat_tables([table, table.slice(place, 1)])
    with pytest.raises(AssertionError, match=r"1 too many, such as \[\{.*0 missing"):
        assert_same_answer(shuffled(more), table)


def test_one_row_instead_of_another_is_found(table):
    rows = table.to_pylist()
    other = next(place for place in range(1, 200) if repr(rows[place]) != repr(rows[0]))
    swapped = pa.concat_tables([without(table, 0), table.slice(other, 1)])
    with pytest.raises(AssertionError, match=r"1 too many.*1 missing"):
        assert_same_answer(swapped, table)


@pytest.mark.parametrize("place", [0, 137])
def test_a_changed_value_is_found(table, place):
    name = table.column_names[-1]
    values = table[name].to_pylist()
    # A null where there is a value, and a value where there is a null.
    values[place] = (
        None if values[place] is not None else next(one for one in values if one is not None)
    )
    changed = table.set_column(
        table.num_columns - 1, name, pa.array(values, table.schema.field(name).type)
    )
    with pytest.raises(AssertionError, match=r"1 too many.*1 missing"):
        assert_same_answer(shuffled(changed), table)


DAY = datetime.date(2026, 1, 1)
NOON = datetime.datetime(2026, 1, 1, 12)
D = decimal.Decimal

EQUAL = [
    ([1, None], pa.int8(), [1, None], pa.uint64()),
    ([2, 10**18], pa.int64(), [D("2.00"), D(10**18)], pa.decimal128(38, 2)),
    ([D("0.10")], pa.decimal128(9, 2), [D("0.1000")], pa.decimal128(38, 4)),
    ([0.1 + 0.2, float("nan"), None], pa.float64(), [0.3, float("nan"), None], pa.float64()),
    ([-0.0, float("inf")], pa.float64(), [0.0, float("inf")], pa.float64()),
    ([1e300], pa.float64(), [1e300 * (1 + 1e-12)], pa.float64()),
    # Cut behind the last place, not rounded.
    ([D("0.049999")], pa.decimal128(19, 6), [0.0499999], pa.float64()),
    ([3], pa.int32(), [3.0], pa.float64()),
    ([DAY], pa.date32(), [datetime.datetime(2026, 1, 1)], pa.timestamp("ns")),
    ([NOON], pa.timestamp("s"), [NOON], pa.timestamp("us", tz="UTC")),
    (["ä", ""], pa.string_view(), ["ä", ""], pa.large_string()),
    (["a", "a"], pa.dictionary(pa.int8(), pa.string()), ["a", "a"], pa.string()),
    (
        [[1], [], None],
        pa.list_(pa.int32()),
        [[D(1)], [], None],
        pa.large_list(pa.decimal128(38, 0)),
    ),
    ([[1.0, 2.0]], pa.list_(pa.float32(), 2), [[1.0, 2.0]], pa.list_(pa.float64())),
    ([None], pa.null(), [None], pa.int32()),
]

UNEQUAL = [
    ([1], pa.int64(), [2], pa.int64()),
    ([None], pa.int64(), [0], pa.int64()),
    ([None], pa.float64(), [float("nan")], pa.float64()),
    ([float("inf")], pa.float64(), [float("-inf")], pa.float64()),
    ([float("inf")], pa.float64(), [1e308], pa.float64()),
    ([0.3], pa.float64(), [0.3 + 1e-8], pa.float64()),
    # Exact however large: here one part in 10^17.
    (
        [D("123456789012345.67")],
        pa.decimal128(38, 2),
        [D("123456789012345.68")],
        pa.decimal128(38, 2),
    ),
    ([2**53], pa.int64(), [2**53 + 1], pa.int64()),
    ([D("0.049997")], pa.decimal128(19, 6), [0.0499999], pa.float64()),
    ([DAY], pa.date32(), [NOON], pa.timestamp("us")),
    (["a"], pa.string(), ["a "], pa.string()),
    ([""], pa.string(), [None], pa.string()),
    ([[1, 2]], pa.list_(pa.int32()), [[2, 1]], pa.list_(pa.int32())),
    ([[]], pa.list_(pa.int32()), [None], pa.list_(pa.int32())),
    ([[1], [2, 3]], pa.list_(pa.int32()), [[1, 2], [3]], pa.list_(pa.int32())),
    ([[None]], pa.list_(pa.int32()), [[]], pa.list_(pa.int32())),
    ([[0.3]], pa.list_(pa.float64()), [[0.31]], pa.list_(pa.float64())),
]


def _pair(mine, my_type, theirs, their_type):
    return pa.table({"x": pa.array(mine, my_type)}), pa.table({"x": pa.array(theirs, their_type)})


@pytest.mark.parametrize("case", EQUAL, ids=repr)
def test_types_that_say_the_same_are_the_same(case):
    mine, theirs = _pair(*case)
    assert_same_answer(mine, theirs, ordered=True)
    assert_same_answer(theirs, mine, ordered=True)


@pytest.mark.parametrize("case", UNEQUAL, ids=repr)
def test_nothing_else_is_the_same(case):
    mine, theirs = _pair(*case)
    for actual, expected in ((mine, theirs), (theirs, mine)):
        with pytest.raises(AssertionError, match="too many"):
            assert_same_answer(actual, expected)


@pytest.mark.parametrize(
    "other", [pa.array(["1"]), pa.array([True]), pa.array([b"1"]), pa.array([[1]])], ids=str
)
def test_a_number_is_no_text_flag_or_list(other):
    with pytest.raises(AssertionError, match=r"column 'x': .* is not "):
        assert_same_answer(pa.table({"x": other}), pa.table({"x": [1]}))


def test_columns_have_the_same_names_in_the_same_order():
    with pytest.raises(AssertionError, match=r"columns \['b', 'a'\]"):
        assert_same_answer(pa.table({"b": [1], "a": [1]}), pa.table({"a": [1], "b": [1]}))


def test_noise_cannot_change_which_rows_belong_together():
    # Sorted by their floats, the rows of the two sides pair up wrongly: noise decides which comes first.
    mine = pa.table({"x": [1.0 + 1e-13, 1.0], "y": [5, 3]})
    theirs = pa.table({"x": [1.0, 1.0 + 1e-13], "y": [5, 3]})
    assert_same_answer(mine, theirs)
    with pytest.raises(AssertionError, match="too many"):
        assert_same_answer(mine, pa.table({"x": [1.0, 1.0], "y": [5, 5]}))


def test_a_value_under_another_key_is_found():
    mine = pa.table({"key": ["a", "b"], "x": [1.0, 2.0]})
    with pytest.raises(AssertionError, match="2 too many"):
        assert_same_answer(mine, pa.table({"key": ["a", "b"], "x": [2.0, 1.0]}))


def test_nothing_is_nothing():
    nothing = pa.table({"x": pa.array([], pa.int64())})
    assert_same_answer(nothing, pa.table({"x": pa.chunked_array([], pa.decimal128(38, 0))}))
    with pytest.raises(AssertionError, match="1 missing"):
        assert_same_answer(nothing, pa.table({"x": [1]}))
