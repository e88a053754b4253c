"""Promise: functions of recommenders in SQL (`hash64`, `bucketize`, …) give the values of their formulas, for every
type, NULLs and slices, and refuse what they do not take by name.

The judges are python-xxhash, torch, numpy and plain Python.
"""

import datetime as dt
import math
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

import tensorquery as tq
from tensorquery.sql.quantiles import _METHODS


def values(sql, table=None):
    """The one column of a query over the table t."""
    session = tq.Session()
    session.register_table("t", pa.table({"one": [1]}) if table is None else table)
    return session.sql(sql).to_arrow().column(0)


def of(array, call):
    """What a call gives for an array, the column x."""
    return values(f"SELECT {call} AS y FROM t", pa.table({"x": array})).to_pylist()


def signed(number):
    return number - 2**64 if number >= 2**63 else number


# ------------------------------------------------------------------------------------------------
# hash64

# The sanity checks of xxHash: bytes of its own generator, seeds 0 and PRIME32_1.
PRIME32, PRIME64 = 2654435761, 11400714785074694797
PUBLISHED = [
    (0, 0, 0xEF46DB3751D8E999),
    (0, PRIME32, 0xAC75FDA2929B17EF),
    (1, 0, 0xE934A84ADB052768),
    (1, PRIME32, 0x5014607643A9B4C3),
    (4, 0, 0x9136A0DCA57457EE),
    (14, 0, 0x8282DCC4994E35C8),
    (14, PRIME32, 0xC3BD6BF63DEB6DF0),
    (222, 0, 0xB641AE8CB691C174),
    (222, PRIME32, 0x20CB8AB7AE10C14A),
]


def generated(length):
    """The first bytes of xxHash's test buffer."""
    found, state = bytearray(), PRIME32
    for _ in range(length):
        found.append(state >> 56)
        state = state * PRIME64 % 2**64
    return bytes(found)


def test_the_published_vectors_of_xxh64():
    for length, seed, wanted in PUBLISHED:
        assert of(pa.array([generated(length)]), f"hash64(x, {seed})") == [signed(wanted)]


WHOLE = [0, 1, -1, 42, -128, 127, None]
WORDS = ["", "a", "größe", "a word of more than twelve bytes", "x" * 100, None]


@pytest.mark.parametrize(
    ("arrays", "form"),
    [
        (
            [pa.array(WHOLE, kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())]
            + [pa.array(WHOLE, pa.int32()).dictionary_encode()],
            lambda value: struct.pack("<q", value),
        ),
        (
            [pa.array([0, 1, 200, None], kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int64())],
            lambda value: struct.pack("<q", value),
        ),
        ([pa.array([2**64 - 1, 2**63], pa.uint64())], lambda value: struct.pack("<Q", value)),
        ([pa.array([True, False, None])], lambda value: struct.pack("<q", value)),
        (
            [pa.array([0.0, 1.5, -2.0, math.inf, None], kind) for kind in (pa.float16(), pa.float32(), pa.float64())],
            lambda value: struct.pack("<d", value),
        ),
        (
            [pa.array(WORDS, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
            + [pa.array(WORDS).dictionary_encode(), pa.array(["", "zz", *WORDS]).dictionary_encode()[2:]],
            lambda value: value.encode(),
        ),
        (
            [pa.array([b"abc", b"\0\0\0", None], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3))],
            lambda value: value,
        ),
    ],
    ids=["integers", "unsigned", "large", "booleans", "floats", "texts", "bytes"],
)  # fmt: skip
def test_equal_values_of_every_width_have_the_hash_of_their_bytes(arrays, form):
    for array in arrays:
        plain = [None if value is None else form(value) for value in array.to_pylist()]
        for seed in (0, 1, 2**64 - 1):
            hashes = [
                None if data is None else xxhash.xxh64_intdigest(data, seed) for data in plain
            ]
            wanted = [None if found is None else signed(found) for found in hashes]
            assert of(array, f"hash64(x, {seed})") == wanted, array.type
            for modulus in (1, 1000, 2**20, 2**63 - 1):
                rests = [None if found is None else found % modulus for found in hashes]
                assert of(array, f"hash64(x, {seed}, {modulus})") == rests, array.type
        assert of(array, "hash64(x)") == of(array, "hash64(x, 0)")


def test_zeros_and_nans_have_one_hash_each():
    zeros = of(pa.array([0.0, -0.0]), "hash64(x)")
    assert zeros[0] == zeros[1]
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    assert (
        len(
            {*of(pa.array(nans), "hash64(x)"), *of(pa.array([math.nan], pa.float32()), "hash64(x)")}
        )
        == 1
    )
    # A float is no integer, and a text is its bytes.
    assert of(pa.array([1.0]), "hash64(x)") != of(pa.array([1]), "hash64(x)")
    assert of(pa.array(["1"]), "hash64(x)") == of(pa.array([b"1"]), "hash64(x)")


def test_elements_of_lists_are_hashed():
    lists = [["a", None, "b"], [], None, ["b"]]
    one = dict(zip("ab", of(pa.array(["a", "b"]), "hash64(x, 7, 100)"), strict=True)) | {None: None}
    wanted = [None if row is None else [one[word] for word in row] for row in lists]
    for kind in (
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ):
        array = (
            pa.array(lists, kind)
            if not pa.types.is_dictionary(kind.value_type)
            else pa.array(lists).cast(kind)
        )
        assert of(array, "hash64(x, 7, 100)") == wanted
        # A slice, whose offsets do not begin with 0.
        assert of(array[1:], "hash64(x, 7, 100)") == wanted[1:]
    fixed = pa.array([["a", "b"], None, ["b", "b"]], pa.list_(pa.string(), 2))
    found = values("SELECT hash64(x, 7, 100) AS y FROM t", pa.table({"x": fixed}))
    assert found.type == pa.list_(pa.int64(), 2)
    assert found.to_pylist() == [[one["a"], one["b"]], None, [one["b"]] * 2]
    assert of(pa.array([[["a"], []], [None]]), "hash64(x, 7, 100)") == [[[one["a"]], []], [None]]


# ------------------------------------------------------------------------------------------------
# bucketize


@pytest.mark.parametrize(
    "kind", [np.int8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]
)
def test_buckets_are_those_of_torch_and_numpy(kind):
    rng = np.random.default_rng(1)
    array = rng.integers(0, 20, 500).astype(kind)
    if array.dtype.kind == "f":
        array = np.concatenate(
            [array, array / kind(3), np.array([np.nan, np.inf, -np.inf, -0.0], kind)]
        )
    for boundaries in ([0, 3, 3, 19], [0.5, 3.0, 7.25], [-1.0, 0.0, 1e9], []):
        for right in (False, True):
            found = of(pa.array(array), f"bucketize(x, {boundaries}, {right})")
            wide, bounds = array.astype(np.float64), np.array(boundaries, np.float64)
            assert (
                found
                == torch.bucketize(torch.tensor(wide), torch.tensor(bounds), right=right).tolist()
            )
            assert found == np.digitize(wide, bounds, right=not right).tolist()
    assert of(pa.array(array), "bucketize(x, [1, 2])") == of(
        pa.array(array), "bucketize(x, [1, 2], false)"
    )


def test_buckets_of_nulls_lists_decimals_and_wide_integers():
    assert of(pa.array([1, None, 5]), "bucketize(x, [1, 2])") == [0, None, 2]
    assert of(pa.array([[1.0, None], None, []]), "bucketize(x, [0.5])") == [[1, None], None, []]
    tenths = pa.array(["0.1", "0.2"]).cast(pa.decimal128(9, 1))
    assert of(tenths, "bucketize(x, [0.1, 0.2])") == [0, 1]
    assert of(tenths, "bucketize(x, [0.1, 0.2], true)") == [1, 2]
    # No two of these are one float.
    wide = pa.array([2**53, 2**53 + 1, 2**53 + 2])
    assert of(wide, f"bucketize(x, [{2**53 + 1}], true)") == [0, 1, 1]
    assert of(pa.array([2**64 - 1], pa.uint64()), f"bucketize(x, [1, {2**64 - 1}])") == [1]
    assert values("SELECT bucketize(NULL, [1]) AS y FROM t").to_pylist() == [None]


# ------------------------------------------------------------------------------------------------
# Lists


def test_multi_hot_has_a_one_at_each_index():
    lists = [[0, 2, 2], [], None, [None, 3], [1]]
    wanted = [[1, 0, 1, 0], [0] * 4, None, [0, 0, 0, 1], [0, 1, 0, 0]]
    for item in (pa.int8(), pa.int64(), pa.uint64()):
        for kind in (pa.list_(item), pa.large_list(item)):
            found = values(
                "SELECT multi_hot(x, 4) AS y FROM t", pa.table({"x": pa.array(lists, kind)})
            )
            assert found.type == pa.list_(pa.float32(), 4)
            assert found.to_pylist() == wanted
            assert of(pa.array(lists, kind)[3:], "multi_hot(x, 4)") == wanted[3:]
    assert of(pa.array([[0, 1], [1, 1]], pa.list_(pa.int32(), 2)), "multi_hot(x, 2)") == [
        [1, 1],
        [0, 1],
    ]
    session = tq.Session()
    session.register_table("t", pa.table({"x": pa.array(lists)}))
    loader, _ = tq.create_dataloader(
        "SELECT multi_hot(x, 4) AS y FROM t WHERE x IS NOT NULL", session=session
    )
    (batch,) = loader
    assert batch["y"].dtype == torch.float32
    assert batch["y"].tolist() == [row for row in wanted if row is not None]


def test_top_k_keeps_the_greatest_in_falling_order():
    numbers = pa.array([[3, 1, 2, 3], [], None, [None, 5], [7]])
    wanted = [[3, 3], [], None, [5], [7]]
    assert of(numbers, "top_k(x, 2)") == wanted
    assert of(numbers[3:], "top_k(x, 2)") == wanted[3:]
    assert of(numbers.cast(pa.large_list(pa.int16())), "top_k(x, 100)") == [
        [3, 3, 2, 1],
        [],
        None,
        [5],
        [7],
    ]
    # NaN is above all numbers, and zeros are equal: the first stays first.
    (found,) = of(pa.array([[1.0, -0.0, 0.0, math.nan]]), "top_k(x, 4)")
    assert [math.copysign(1, value) for value in found[2:]] == [-1, 1]
    assert math.isnan(found[0])
    assert of(pa.array([["b", "a", "c"]]), "top_k(x, 2)") == [["c", "b"]]
    rows = pa.table({
        "items": [["a", "b", "c"], ["d"], None, ["e", "f"], ["g", "h"]],
        "scores": [[0.1, 0.9, 0.9], [1.0], [1.0], None, [None, 0.5]],
    })  # fmt: skip
    found = values("SELECT top_k(items, 2, scores) AS y FROM t", rows).to_pylist()
    assert found == [["b", "c"], ["d"], None, None, ["h"]]
    nested = pa.table({"items": [[[1, 2], [3]]], "scores": [[1, 2]]})
    assert values("SELECT top_k(items, 1, scores) AS y FROM t", nested).to_pylist() == [[[3]]]


# ------------------------------------------------------------------------------------------------
# Times


def test_weights_halve_with_each_half_life():
    now = dt.datetime(2024, 5, 1, 12)
    times = [
        now,
        now - dt.timedelta(days=7),
        now - dt.timedelta(days=3.5),
        now + dt.timedelta(days=7),
        None,
    ]
    wanted = [1, 0.5, 0.5**0.5, 2, None]
    for unit in ("ms", "us", "ns"):
        for zone in (None, "UTC", "Europe/Berlin"):
            array = pa.array(times, pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
            found = of(array, "time_decay(x, TIMESTAMP '2024-05-01 12:00:00', INTERVAL '7 days')")
            assert found.pop() is wanted[-1] is None
            assert found == pytest.approx(wanted[:-1], rel=1e-15)
    days = pa.array([dt.date(2024, 4, 24), dt.date(2024, 5, 1), None])
    assert of(days, "time_decay(x, DATE '2024-05-01', INTERVAL '168 hours')") == [0.5, 1, None]
    # The reference of each row.
    both = pa.table({"x": [0, 10, 2**53 + 1], "then": [3, 10, 2**53 + 2]})
    found = values("SELECT time_decay(x, then, 1) AS y FROM t", both).to_pylist()
    assert found == [0.125, 1, 0.5]
    assert of(pa.array([1.5, None, math.inf]), "time_decay(0, x, 0.75)") == [0.25, None, 0]


@pytest.mark.parametrize("wave", ["sin", "cos"])
def test_cyclic_features_are_sine_and_cosine_of_the_place_in_a_period(wave):
    by = getattr(np, wave)
    hours = np.arange(-30, 60)
    found = of(pa.array(hours), f"cyclic_{wave}(x, 24)")
    np.testing.assert_allclose(found, by(2 * np.pi * hours / 24), atol=1e-12)
    parts = hours / 7
    np.testing.assert_allclose(
        of(pa.array(parts), f"cyclic_{wave}(x, 2.5)"), by(2 * np.pi * parts / 2.5), atol=1e-12
    )
    seconds = np.array([-1, 0, 86_399, 1_700_000_000, 253_402_300_799])
    for unit in ("s", "ms", "us"):
        times = pa.array(seconds, pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(unit))
        found = of(times, f"cyclic_{wave}(x, INTERVAL '7 days')")
        np.testing.assert_allclose(found, by(2 * np.pi * (seconds % 604_800) / 604_800), atol=1e-12)
    clock = pa.array([dt.time(0), dt.time(6), dt.time(18), None])
    wanted = {"sin": [0, 1, -1], "cos": [1, 0, 0]}[wave]
    found = of(clock, f"cyclic_{wave}(x, INTERVAL '1 day')")
    assert found.pop() is None
    assert found == pytest.approx(wanted, abs=1e-12)
    assert of(pa.array([dt.date(1970, 1, 1)]), f"cyclic_{wave}(x, INTERVAL '365 days')") == [
        float(wave == "cos")
    ]


# ------------------------------------------------------------------------------------------------
# Arguments that are refused, and constants

REFUSED = [
    ("hash64()", "hash64"),
    ("hash64(a, 1, 2, 3)", "hash64() got 4 arguments; write hash64(value)"),
    ("hash64(a, -1)", "the seed must be a whole number from 0 to 2^64 - 1, not -1"),
    ("hash64(a, 1.5)", "the seed must be a whole number from 0 to 2^64 - 1, not 1.5"),
    ("hash64(a, NULL)", "the seed must be a whole number from 0 to 2^64 - 1, not NULL"),
    ("hash64(a, 'x')", 'the seed must be a whole number from 0 to 2^64 - 1, not the text "x"'),
    ("hash64(a, s)", "the seed must be a whole number"),
    ("hash64(a, a)", "the seed must be a constant"),
    ("hash64(a, 0, 0)", "the modulus must be a whole number from 1 to 9223372036854775807, not 0"),
    ("hash64(a, 0, NULL)", "the modulus must be a whole number from 1 to"),
    ("hash64(ts)", "Timestamp"),
    ("hash64(st)", "or a field of it"),
    ("bucketize(a, [3, 2])", "boundaries must be in rising order, and number 2 is 2, after 3; sort them"),
    ("bucketize(a, [1.0, NULL])", "number 2 is NULL; leave it out"),
    ("bucketize(a, NULL)", "boundaries must be a list of numbers, not NULL"),
    ("bucketize(a, [NULL])", "number 1 is NULL"),
    ("bucketize(a, [1.0, CAST('NaN' AS DOUBLE)])", "number 2 is NaN"),
    ("bucketize(a, ['x'])", "boundaries must be a list of numbers"),
    ("bucketize(a, 3)", "boundaries must be a list of numbers, and is of the type Int64"),
    ("bucketize(a, [a])", "boundaries must be a constant"),
    ("bucketize(s, [1])", "the value must be a number or a list of numbers, and is of the type Utf8"),
    ("bucketize(a, [1], NULL)", "right must be true or false, not NULL"),
    ("bucketize(a, [1], 1)", "right must be true or false, and is of the type Int64"),
    ("multi_hot(l, 0)", "the size must be a whole number from 1 to 16384, not 0"),
    ("multi_hot(l, 1000000000)", "the size must be a whole number from 1 to 16384"),
    ("multi_hot(l, a)", "the size must be written out"),
    ("multi_hot(l, 3)", "the index 3 must be in 0..3; raise the size"),
    ("multi_hot([-1], 3)", "the index -1 must be in 0..3"),
    ("multi_hot(s, 3)", "indices must be a list of integers, and is of the type Utf8"),
    ("multi_hot([0.5], 3)", "indices must be a list of integers"),
    ("top_k(l, 0)", "k must be a whole number from 1 to"),
    ("top_k(l, a)", "k must be a constant"),
    ("top_k(a, 1)", "values must be a list, and is of the type Int64"),
    ("top_k(l, 1, ['x'])", "scores must be a list of numbers"),
    ("top_k(l, 1, [1])", "a row has 3 values and 1 scores; each value needs one"),
    ("top_k([[1]], 1)", "give scores"),
    ("time_decay(ts, ts, 7)", "half_life must be an interval, such as INTERVAL '7 days', and is of the type Int64"),
    ("time_decay(ts, a, INTERVAL '1 day')", "give two timestamps or dates, or two numbers"),
    ("time_decay(a, a, INTERVAL '1 day')", "half_life must be a number"),
    ("time_decay(a, a, 0)", "half_life must be above zero and finite, not 0"),
    ("time_decay(a, a, -1)", "half_life must be above zero and finite, not -1"),
    ("time_decay(a, a, CAST('inf' AS DOUBLE))", "half_life must be above zero and finite"),
    ("time_decay(a, a, a)", "half_life must be a constant"),
    ("time_decay(ts, ts, INTERVAL '1 month')", "half_life has months, whose lengths differ"),
    ("time_decay(s, ts, INTERVAL '1 day')", "the time must be a timestamp, a date or a number"),
    ("cyclic_sin(ts, 24)", "period must be an interval"),
    ("cyclic_cos(a, NULL)", "period must be above zero and finite, not NULL"),
    ("cyclic_cos(a, 0)", "period must be above zero and finite, not 0"),
    ("cyclic_sin(ts, INTERVAL '1 year')", "period has months"),
    ("cyclic_sin(true, 24)", "x must be a timestamp, a date or a number, and is of the type Boolean"),
]  # fmt: skip


@pytest.fixture(scope="module")
def mixed():
    session = tq.Session()
    row = {"a": 1, "s": "x", "l": [0, 1, 3], "ts": dt.datetime(2024, 1, 1), "st": {"f": 1}}
    session.register_table("t", pa.Table.from_pylist([row, row]))
    return session


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[call for call, _ in REFUSED])
def test_arguments_are_refused_by_name(mixed, call, message):
    with pytest.raises((tq.QueryError, tq.DataError)) as caught:
        mixed.sql(f"SELECT {call} AS y FROM t").to_arrow()
    assert message in str(caught.value)
    # Nothing of the engine's own forms.
    assert "ScalarValue" not in str(caught.value)


def test_constants_may_be_computed_and_calls_may_stand_anywhere(mixed):
    (found, _) = (
        mixed.sql("SELECT hash64(a, 2 + 3, 10 * 10) AS y FROM t").to_arrow()["y"].to_pylist()
    )
    assert found == xxhash.xxh64_intdigest(struct.pack("<q", 1), 5) % 100
    assert values("SELECT hash64('a', 0, 7) + hash64(2, 0, 7) AS y FROM t").to_pylist()[0] < 14
    assert values("SELECT bucketize(5, [1, 2 * 3]) AS y FROM t").to_pylist() == [1]
    names = mixed.sql(
        "SELECT count(*) AS n FROM t GROUP BY hash64(s, 0, 4) ORDER BY hash64(min(s))"
    )
    assert names.to_arrow()["n"].to_pylist() == [2]
    for sql in ("SELECT hash64(NULL) AS y FROM t", "SELECT multi_hot(NULL, 2) AS y FROM t", "SELECT top_k(NULL, 2) AS y FROM t"):  # fmt: skip
        assert mixed.sql(sql).to_arrow()["y"].to_pylist() == [None, None]


def test_names_of_these_functions_cannot_be_replaced():
    with pytest.raises(tq.ConfigError, match="hash64 is a built-in function"):
        tq.Session().register_udf("hash64", lambda x: x, ["int64"], "int64")


# ------------------------------------------------------------------------------------------------
# Filters, splits, workers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("functions")
    for part in range(3):
        ids = np.arange(part * 200, part * 200 + 200)
        rows = pa.table({"id": ids, "word": [f"w{i % 37}" for i in ids], "price": ids / 7})
        pq.write_table(rows, path / f"{part}.parquet", row_group_size=50)
    return path


WHERE = [
    ("hash64(id, 0, 10) = 3", lambda i: xxhash.xxh64_intdigest(struct.pack("<q", i)) % 10 == 3),
    ("hash64(word) < 0", lambda i: signed(xxhash.xxh64_intdigest(f"w{i % 37}".encode())) < 0),
    ("bucketize(price, [10, 50]) IN (0, 2)", lambda i: i / 7 <= 10 or i / 7 > 50),
    ("id > 300 AND bucketize(id, [300, 400]) = 1", lambda i: 300 < i <= 400),
    ("cyclic_cos(id, 4) > 0.5", lambda i: i % 4 == 0),
]


@pytest.mark.parametrize(("predicate", "keeps"), WHERE, ids=[where for where, _ in WHERE])
def test_filters_over_them_leave_out_no_row_that_counts(folder, predicate, keeps):
    wanted = [i for i in range(600) if keeps(i)]
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.sql(f"SELECT id FROM t WHERE {predicate}")
    assert query.count() == len(wanted) > 0
    assert query.to_arrow()["id"].to_pylist() == wanted
    shares = [
        [row for batch in tq.create_dataloader(query, rank=rank, world_size=2)[0] for row in batch["id"].tolist()]
        for rank in range(2)
    ]  # fmt: skip
    assert sorted(shares[0] + shares[1]) == wanted
    assert abs(len(shares[0]) - len(shares[1])) <= 1


@pytest.mark.slow
def test_workers_compute_what_this_process_computes_and_nothing_is_staged(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    sql = "SELECT id, hash64(word, 1, 1000) AS item, bucketize(price, [1, 20]) AS bucket, cyclic_sin(id, 9) AS s FROM t"

    def rows(**options):
        loader, _ = tq.create_dataloader(
            sql, session=session, batch_size=32, stage="never", **options
        )
        columns = [torch.stack([batch[name].double() for name in batch], 1) for batch in loader]
        return sorted(map(tuple, torch.cat(columns).tolist()))

    alone = rows()
    assert len(alone) == 600
    assert rows(num_workers=2, multiprocessing_context="forkserver", shuffle=True) == alone


# ------------------------------------------------------------------------------------------------
# quantile_boundaries


@pytest.mark.parametrize("method", _METHODS)
def test_quantiles_are_those_of_numpy(method):
    rng = np.random.default_rng(3)
    for array in (rng.normal(size=101), rng.integers(-3, 3, 40)):
        session = tq.Session()
        session.register_table("t", pa.table({"x": pa.array([None, *array.tolist()])}))
        query = session.sql("SELECT x FROM t")
        for buckets in (1, 7, 100):
            found = tq.quantile_boundaries(query, "x", buckets=buckets, method=method)
            assert (
                found == np.quantile(array, np.arange(1, buckets) / buckets, method=method).tolist()
            )
            assert max(of(pa.array(array), f"bucketize(x, {found})")) < buckets


def test_quantiles_of_text_queries_filters_and_files(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    found = tq.quantile_boundaries(
        "SELECT price AS p FROM t WHERE id < 101", "p", buckets=4, session=session
    )
    np.testing.assert_array_equal(found, np.quantile(np.arange(101) / 7, [0.25, 0.5, 0.75]))
    narrowed = session.table("t").select(None, "id < 101")
    assert tq.quantile_boundaries(narrowed, "price", buckets=4) == found


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"column": "prise"}, tq.QueryError, "price"),
        ({"column": "word"}, tq.ConfigError, "quantiles are of numbers; cast it"),
        ({"column": 3}, tq.ConfigError, "column must be the name of a column, not 3"),
        ({"buckets": 0}, tq.ConfigError, "buckets"),
        ({"buckets": 10**9}, tq.ConfigError, "buckets"),
        ({"method": "liner"}, tq.ConfigError, "linear"),
        ({"query": "SELECT 1 AS price"}, tq.ConfigError, "needs session="),
        ({"query": 7}, tq.ConfigError, "query must be a Query or SQL, not 7"),
        ({"filters": "id < 0"}, tq.DataError, "column 'price' has no values"),
        ({"sql": "SELECT 0.0 / 0.0 AS price FROM t"}, tq.DataError, "column 'price' has NaN in 600 of 600 rows"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_arguments_of_quantiles_are_refused_by_name(folder, arguments, error, message):
    session = tq.Session()
    session.register_parquet("t", folder)
    given = {"sql": "SELECT * FROM t", "filters": None, "column": "price", "buckets": 4} | arguments
    query = session.sql(given.pop("sql")).select(None, given.pop("filters"))
    with pytest.raises(error) as caught:
        tq.quantile_boundaries(given.pop("query", query), given.pop("column"), **given)
    assert message in str(caught.value)
