"""ORC: rows, types and order are those of pyarrow's reader, on every shard; unreadable files are refused by name."""

import datetime as dt
import decimal
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pytest

import stopping
import support
import tensorquery as tq
from rows import multiset, sharded

STRIPE_ROWS = 1024
"""Rows after which pyarrow looks whether a stripe is full."""

TYPES = {
    "b": (pa.bool_(), [True, None, False]),
    "i8": (pa.int8(), [-128, None, 127]),
    "i16": (pa.int16(), [-(2**15), None, 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "f32": (pa.float32(), [-1.5, None, float("inf")]),
    "f64": (pa.float64(), [1e300, None, -0.0]),
    "s": (pa.string(), ["größe", None, ""]),
    "raw": (pa.binary(), [b"\x00\xff", None, b""]),
    "day": (pa.date32(), [dt.date(1583, 1, 1), None, dt.date(9999, 12, 31)]),
    "ns": (pa.timestamp("ns"), [-(10**18) - 1, None, 10**18 + 123_456_789]),
    "zoned": (pa.timestamp("ns", tz="UTC"), [-1, None, 1_500_000_000_000_000_001]),
    "dec": (pa.decimal128(38, 9), [decimal.Decimal("-12345678901234567890.123456789"), None, 1]),
    "short_dec": (pa.decimal128(5, 2), [decimal.Decimal("-1.25"), None, decimal.Decimal("999.99")]),
    "list": (pa.list_(pa.int32()), [[1, None], None, []]),
    "deep": (pa.list_(pa.list_(pa.string())), [[["a"], None, []], None, [[None]]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1), ("l", None)], None, []]),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.timestamp("ns")))]),
        [{"x": 1, "y": [0, None, -1_500_000_001]}, None, {"x": None, "y": None}],
    ),
}
"""By column: type and three values, the second null."""


pytestmark = pytest.mark.usefixtures("folder")


def all_types(rows=3000, seed=0):
    """Every type that ORC has but unions, a third null, in runs and out of order, so that each encoding is used."""
    rng = np.random.default_rng(seed)
    columns = {"id": pa.array(range(rows), pa.int64())}
    for name, (kind, values) in TYPES.items():
        three = pa.array(values, kind)
        order = rng.integers(0, 3, rows)
        order[: rows // 3] = np.repeat(order[: rows // 3], 100)[: rows // 3]
        columns[name] = three.take(pa.array(order))
    columns["word"] = pa.array([f"{n % 7} {'x' * (n % 40)}" for n in range(rows)])
    columns["noise"] = pa.array(rng.integers(-(2**62), 2**62, rows))
    columns["steps"] = pa.array(np.cumsum(rng.integers(0, 5, rows)))
    columns["outlier"] = pa.array(
        np.where(rng.random(rows) < 0.01, 2**40, rng.integers(0, 9, rows))
    )
    return pa.table(columns)


def write(table, path="t.orc", **options):
    """Write with stripes of some thousand rows."""
    orc.write_table(table, path, **{"stripe_size": 4096, "compression": "zlib", **options})


def write_stripes(table, path="t.orc"):
    """Write with a stripe of `STRIPE_ROWS` rows each."""
    write(table, path, batch_size=STRIPE_ROWS, stripe_size=1, dictionary_key_size_threshold=1.0)


def judged(path="t.orc"):
    """The rows that pyarrow reads."""
    return orc.read_table(path)


def same(found, expected):
    """Rows and order; types but for nullability and the names of entries."""
    assert found.num_rows == expected.num_rows
    for name in expected.column_names:
        one, two = found[name].combine_chunks(), expected[name].combine_chunks()
        assert one.type == two.type, name
        assert one.equals(two) or repr(one.to_pylist()) == repr(two.to_pylist()), name


# --- values ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threshold", "compression"),
    [(0.0, each) for each in ["uncompressed", "zlib", "snappy", "lz4", "zstd"]] + [(1.0, "zlib")],
    ids=lambda value: value if isinstance(value, str) else ("dictionary" if value else "direct"),
)
def test_every_type_is_read_as_pyarrow_reads_it(session, compression, threshold):
    # So many rows that the noise of one stripe is more than the writer holds back.
    table = all_types(12_000)
    write(table, compression=compression, dictionary_key_size_threshold=threshold)
    assert orc.ORCFile("t.orc").nstripes > 1
    session.register_orc("t", "t.orc")
    same(session.table("t").to_arrow(), judged())
    rows = sharded(table="t", session=session, world_size=3, split_rows=1)
    assert multiset(rows) == multiset(judged().to_pylist())
    assert session.tables == [tq.TableInfo("t", "orc", 1, os.path.getsize("t.orc"), 12_000)]


def test_the_schema_is_pyarrows(session):
    write(all_types(10))
    session.register_orc("t", "t.orc")
    assert session.table("t").schema.equals(judged().schema)


@pytest.mark.parametrize("name", TYPES)
def test_a_column_without_values_and_one_without_nulls(session, name):
    kind, values = TYPES[name]
    full = pa.array([values[0], values[2]] * 1500, kind)
    write(pa.table({"none": pa.nulls(3000, kind), "full": full}))
    session.register_orc("t", "t.orc")
    same(session.table("t").to_arrow(), judged())


def test_nested_nulls_are_those_of_pyarrow(session):
    rng = np.random.default_rng(7)

    def value(depth):
        if rng.random() < 0.3:
            return None
        if depth == 0:
            return int(rng.integers(-5, 5))
        return {"a": value(depth - 1), "b": [value(0) for _ in range(rng.integers(0, 4))]}

    kind = pa.int64()
    for _ in range(3):
        kind = pa.struct([("a", kind), ("b", pa.list_(pa.int64()))])
    write(pa.table({"v": pa.array([value(3) for _ in range(4000)], kind)}))
    session.register_orc("t", "t.orc")
    same(session.table("t").to_arrow(), judged())


@pytest.mark.slow
def test_random_tables_in_random_stripes(session):
    rng = np.random.default_rng(11)
    kinds = ["i8", "i32", "f32", "flag", "s", "raw", "day", "price", "list", "struct"]
    for number in range(12):
        table = support.random_table(rng, int(rng.integers(1, 9000)), kinds, nulls=rng.random())
        path = f"{number}.orc"
        write(
            table,
            path,
            stripe_size=int(rng.integers(1, 1 << 17)),
            batch_size=int(rng.integers(1, 3000)),
            row_index_stride=int(rng.choice([1000, 10000])),
            compression_block_size=int(rng.choice([1 << 16, 1 << 18])),
            dictionary_key_size_threshold=float(rng.random()),
        )
        session.register_orc("t", path)
        same(session.table("t").to_arrow(), judged(path))
        assert session.table("t").count() == table.num_rows


# --- splits ---


def ids_table(rows=40 * STRIPE_ROWS):
    ids = np.arange(rows)
    return pa.table(
        {
            "id": ids,
            "day": pa.array(ids // STRIPE_ROWS, pa.int32()).cast(pa.date32()),
            "name": [f"{n:08}" for n in ids],
            "x": ids / 7,
            "n": pa.array([None if n < 3 * STRIPE_ROWS else int(n) for n in ids], pa.int32()),
        }
    )


def test_stripes_are_splits_and_each_knows_its_rows(session):
    write_stripes(ids_table())
    stripes = orc.ORCFile("t.orc").nstripes
    session.register_orc("t", "t.orc")
    plan = session.table("t").plan_shards(world_size=2, split_rows=1)
    assert stripes > 20
    assert [split.unit for split in plan.splits()[:2]] == ["stripe 0", "stripe 1"]
    assert sum(split.row_count for split in plan.splits()) == 40 * STRIPE_ROWS
    assert len(plan.splits()) == stripes
    few = session.table("t").plan_shards(world_size=2, split_rows=10 * STRIPE_ROWS)
    assert 4 <= len(few.splits()) < stripes
    assert few.splits()[0].unit.startswith("stripes 0 to ")
    whole = session.table("t").plan_shards(world_size=2, split_bytes="1GiB")
    assert len(whole.splits()) == 1


def test_rows_come_in_the_files_order(session):
    write_stripes(ids_table())
    loader, _ = tq.create_dataloader(path="t.orc", format="orc", columns=["id"], split_rows=1)
    found = support.flat(support.ids_of(loader))
    assert found == list(range(40 * STRIPE_ROWS))


def test_narrow_projections_weigh_less(session):
    write_stripes(ids_table())
    session.register_orc("t", "t.orc")
    weights = {
        name: sum(split.bytes for split in query.plan_shards(world_size=1, split_rows=1).splits())
        for name, query in {
            "all": session.table("t"),
            "name": session.sql("SELECT name FROM t"),
            "day": session.sql("SELECT day FROM t"),
        }.items()
    }
    assert 0 < weights["day"] < weights["name"] < weights["all"] <= os.path.getsize("t.orc")


PRUNED = {
    "id >= 30 * 1024": 10,
    "id = 5000": 1,
    "day = DATE '1970-01-05'": 1,
    "day < DATE '1970-01-03'": 2,
    "name >= '00038912'": 2,
    "name IN ('00000001', '00001500')": 2,
    "id BETWEEN 1024 AND 3071": 2,
    "n IS NOT NULL": 37,
    "n IS NULL": 3,
    "id % 2 = 0": 40,
    "x < 3": 40,
    "id < 0": 0,
}
"""The number of stripes left, of 40, by predicate."""


@pytest.mark.parametrize("where", PRUNED)
def test_statistics_prune_stripes_and_no_row(session, where):
    write_stripes(ids_table())
    assert orc.ORCFile("t.orc").nstripes == 40
    session.register_orc("t", "t.orc")
    query = session.sql(f"SELECT id FROM t WHERE {where}")
    plan = query.plan_shards(world_size=1, split_rows=1)
    assert len(plan.splits()) == PRUNED[where]
    session.register_table("truth", judged())
    expected = session.sql(f"SELECT id FROM truth WHERE {where}").to_arrow()
    rows = sharded(query, world_size=1, split_rows=1)
    assert [row["id"] for row in rows] == expected["id"].to_pylist()
    assert query.count() == expected.num_rows


def test_statistics_that_writers_get_wrong_prune_nothing(session):
    """The bounds of floats and of timestamps: NaN, -0.0 and time zones."""
    x = np.where(np.arange(4 * STRIPE_ROWS) % 2, np.nan, 1.0)
    write(pa.table({"x": x, "t": pa.array(range(4 * STRIPE_ROWS), pa.timestamp("ns"))}))
    session.register_orc("t", "t.orc")
    session.register_table("truth", judged())
    for where in ("x > 5", "x = 'NaN'::double", "t > TIMESTAMP '1970-01-01 00:00:00.000001'"):
        query = session.sql(f"SELECT * FROM t WHERE {where}")
        assert query.count() == session.sql(f"SELECT * FROM truth WHERE {where}").count() > 0
        assert len(sharded(query, split_rows=1)) == query.count()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_row_once_over_ranks_and_workers(session, world_size, workers):
    for number, part in enumerate(support.cut(ids_table(), 3, np.random.default_rng(2))):
        write_stripes(part, f"{number}.orc")
    session.register_orc("t", ".")
    query = session.sql("SELECT id, name, x FROM t WHERE id % 3 <> 1")
    options = {"batch_size": 700, "split_rows": 1, "shuffle": True, "shuffle_buffer_size": 900}
    shards = support.read_shards(query, world_size, workers, **options)
    assert support.rows_of(batch for shard in shards for batch in shard) == support.rows_of(
        [query.to_arrow()]
    )


@pytest.mark.slow
def test_worker_processes_and_equal_steps(session):
    write_stripes(ids_table(9 * STRIPE_ROWS))
    session.register_orc("t", "t.orc")
    steps, found = set(), []
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            "SELECT id FROM t WHERE x > 100",
            session=session,
            rank=rank,
            world_size=2,
            num_workers=2,
            batch_size=50,
            split_rows=1,
            multiprocessing_context="forkserver",
        )
        batches = support.ids_of(loader)
        steps.add(len(batches))
        found += support.flat(batches)
    assert len(steps) == 1
    assert sorted(found) == list(range(701, 9 * STRIPE_ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [{}, {"shuffle": True, "shuffle_buffer_size": 500}])
@pytest.mark.parametrize("other", [{}, {"num_workers": 2}])
def test_stopped_and_resumed_every_row_comes_once(session, shuffle, other):
    write_stripes(ids_table(6 * STRIPE_ROWS))
    session.register_orc("t", "t.orc")
    query = session.sql("SELECT id FROM t")
    options = {"batch_size": 300, "split_rows": 1, **shuffle}
    loader = stopping.loader_of(query, **options)
    before, state = stopping.take(loader, 7)
    after = stopping.ids(stopping.resumed(query, state, **options, **other))
    assert sorted(support.flat(before + after)) == list(range(6 * STRIPE_ROWS))
    if not other:
        whole = stopping.ids(stopping.loader_of(query, **options))
        assert before + after == whole


def test_trace_finds_stripes_and_rows(session):
    write_stripes(ids_table(5 * STRIPE_ROWS))
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM 't.orc' WHERE id >= 2000 AND id % 2 = 0", batch_size=100, split_rows=1
    )
    first = support.ids_of([next(iter(loader))])[0]
    found = dataset.trace(0, 0).ranges
    assert first == list(range(2000, 2200, 2))
    assert [one.row_groups for one in found] == [(1,), (2,)]
    runs = [run for one in found for run in one.physical_rows]
    assert [row for start, end in runs for row in range(start, end)] == first


# --- tables ---


def test_path_literals_hive_columns_and_files_without_rows(session, folder):
    for k in (1, 2):
        os.makedirs(folder / f"k={k}")
        write(ids_table(2000), f"k={k}/a.orc")
    write(ids_table(1).slice(0, 0), "k=2/b.orc")
    query = session.sql("SELECT k, count(*) AS n FROM '*/*.orc' GROUP BY k ORDER BY k")
    assert query.to_arrow().to_pylist() == [{"k": 1, "n": 2000}, {"k": 2, "n": 2000}]
    rows = sharded(session.sql("SELECT id, k FROM '*/*.orc' WHERE k = 2"), split_rows=1)
    assert multiset(rows) == multiset([{"id": n, "k": 2} for n in range(2000)])


def test_a_file_without_rows_has_columns(session):
    write(all_types(10).slice(0, 0))
    session.register_orc("t", "t.orc")
    assert session.table("t").column_names == all_types(10).column_names
    assert session.table("t").count() == 0
    assert sharded(table="t", session=session) == []


def test_only_counting_reads_no_column(session):
    write(ids_table(3000))
    session.register_orc("t", "t.orc")
    assert session.sql("SELECT count(*) AS n FROM t").to_arrow().to_pylist() == [{"n": 3000}]
    rows = sharded(session.sql("SELECT 1 AS one FROM t"), split_rows=1)
    assert rows == [{"one": 1}] * 3000


def test_columns_are_found_by_name_and_widened(session):
    write(
        pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "s": [{"p": 1, "q": "y"}]}), "1.orc"
    )
    write(
        pa.table({"s": [{"p": 2, "q": "z"}], "a": pa.array([2**40], pa.int64()), "c": [1.5]}),
        "2.orc",
    )
    session.register_orc("t", ["1.orc", "2.orc"])
    assert session.table("t").to_arrow().to_pylist() == [
        {"a": 1, "b": "x", "s": {"p": 1, "q": "y"}, "c": None},
        {"a": 2**40, "b": None, "s": {"p": 2, "q": "z"}, "c": 1.5},
    ]
    assert session.sql("SELECT a FROM t WHERE a > 5").to_arrow()["a"].to_pylist() == [2**40]


def test_files_that_disagree_are_named_with_the_column(session):
    write(pa.table({"a": [1]}), "1.orc")
    write(pa.table({"a": ["x"]}), "2.orc")
    with pytest.raises(tq.DataError, match=r"\"a\" is Int64 in .*1\.orc and Utf8 in .*2\.orc"):
        session.register_orc("t", ["1.orc", "2.orc"])


def test_formats_are_not_mixed(session):
    write(pa.table({"a": [1]}), "1.orc")
    with open("2.csv", "w") as file:
        file.write("a\n1\n")
    with pytest.raises(tq.ConfigError, match=r"1\.orc is orc and .*2\.csv is csv"):
        session.sql("SELECT * FROM '*'")
    with pytest.raises(tq.ConfigError, match="a compressed orc file"):
        os.rename("1.orc", "1.orc.gz")
        session.sql("SELECT * FROM '1.orc.gz'")


def test_tensors_and_the_null_policy(session):
    write(pa.table({"x": pa.array([1.5, None, 2.5]), "n": [1, 2, 3]}))
    with pytest.raises(tq.DataError, match='column "x"'):
        list(tq.create_dataloader(path="t.orc", batch_size=3)[0])
    (batch,) = tq.create_dataloader(path="t.orc", batch_size=3, nulls="mask")[0]
    assert batch["x_mask"].tolist() == [True, False, True]
    assert batch["n"].tolist() == [1, 2, 3]


# --- timestamps ---


def test_the_declared_unit_holds_all_years(session):
    """The year 9999 in timestamp[us], which many tables use for "forever", is out of range in nanoseconds."""
    far = pa.table(
        {"t": pa.array([dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1)], pa.timestamp("us"))}
    )
    write(far)
    session.register_orc("ns", "t.orc")
    with pytest.raises(tq.DataError, match="(?s)declare the column's type.*t\\.orc"):
        session.table("ns").to_arrow()
    session.register_orc("us", "t.orc", schema=far.schema)
    assert session.table("us").to_arrow().equals(far)
    assert multiset(sharded(table="us", session=session)) == multiset(far.to_pylist())


def test_a_timestamp_finer_than_the_declared_unit_is_an_error(session):
    write(pa.table({"t": pa.array([1_001], pa.timestamp("ns"))}))
    session.register_orc("t", "t.orc", schema=pa.schema([("t", pa.timestamp("us"))]))
    with pytest.raises(tq.DataError, match="no whole 64-bit number of Microseconds"):
        session.table("t").to_arrow()


def test_nested_timestamps_take_the_declared_unit(session):
    kind = pa.list_(pa.struct([("at", pa.timestamp("us"))]))
    table = pa.table({"l": pa.array([[{"at": dt.datetime(9999, 1, 1)}], None], kind)})
    write(table)
    session.register_orc("t", "t.orc", schema=table.schema)
    assert session.table("t").to_arrow().to_pylist() == table.to_pylist()


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_time_beyond_the_calendar_is_an_error_and_never_null(session, unit):
    """Some take the largest 64-bit number for "forever"; what it means from a writer in a time zone is unknown."""
    scale = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    last = 8_210_235_340_799 * scale
    for time, is_read in [
        (last, True),
        (-last, True),
        (last + scale, False),
        (-last - 2 * 10**11 * scale, False),
    ]:
        table = pa.table({"t": pa.array([0, time, None], pa.timestamp(unit))})
        try:
            write(table)
        except pa.ArrowInvalid:
            continue
        session.register_orc(f"t{is_read}", "t.orc", schema=table.schema)
        if is_read:
            assert session.table("tTrue").to_arrow().equals(table)
        else:
            with pytest.raises(tq.DataError, match=r"(?s)timestamp.*262141.*t\.orc"):
                session.table("tFalse").to_arrow()


# --- what cannot be read ---


def test_a_file_that_is_no_orc_file_is_named(session):
    noise = np.random.default_rng(13).bytes(1000)
    for content in (b"", b"x", b"ORC", b"PAR1" + bytes(100) + b"PAR1", noise):
        with open("bad.orc", "wb") as file:
            file.write(content)
        with pytest.raises(tq.DataError, match=r"(?s)not a readable ORC file.*bad\.orc"):
            session.register_orc("t", "bad.orc")


def test_a_cut_file_is_named(session):
    write(ids_table(3000))
    with open("t.orc", "rb") as file:
        content = file.read()
    for length in (3, 100, len(content) // 2, len(content) - 1):
        with open("cut.orc", "wb") as file:
            file.write(content[:length])
        with pytest.raises(tq.DataError, match=r"cut\.orc"):
            session.register_orc("t", "cut.orc")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["zlib", "snappy", "zstd", "lz4"])
def test_damaged_stripes_are_an_error_and_never_a_crash(session, compression):
    """Bytes within the stripes are overwritten: an error that names the file, or other values of the same number."""
    table = all_types(3000)
    write(table, compression=compression, stripe_size=1 << 20)
    with open("t.orc", "rb") as file:
        content = file.read()
    rng = np.random.default_rng(3)
    errors = 0
    for _ in range(40):
        damaged = bytearray(content)
        at = int(rng.integers(3, len(content) * 3 // 4))
        damaged[at : at + 8] = rng.bytes(8)
        with open("bad.orc", "wb") as file:
            file.write(damaged)
        message = None
        try:
            session.register_orc("t", "bad.orc")
            assert session.table("t").to_arrow().num_rows == 3000
        except tq.DataError as error:
            message = str(error)
            errors += 1
        assert message is None or "bad.orc" in message
    assert errors > 5


def test_a_stripe_without_a_footer_is_named(session):
    write(ids_table(3000), compression="uncompressed")
    with open("t.orc", "rb") as file:
        content = file.read()
    number = rb"[\x80-\xff]*[\x00-\x7f]"
    # The first stripe begins behind the file's first three bytes; the fourth of these numbers is the length of its footer.
    stripe = re.compile(rb"(\x08\x03\x10%b\x18%b\x20)(%b)\x28" % (number, number, number))
    found = stripe.search(content, len(content) - 1000)
    damaged = bytearray(content)
    damaged[found.start(2) : found.end(2)] = b"\x80" * (len(found[2]) - 1) + b"\0"
    with open("bad.orc", "wb") as file:
        file.write(damaged)
    with pytest.raises(tq.DataError, match=r"(?s)stripe 0.*no footer.*bad\.orc"):
        session.register_orc("t", "bad.orc")


def test_a_changed_file_is_an_error(session):
    write(ids_table(3000))
    session.register_orc("t", "t.orc")
    write(ids_table(4000))
    with pytest.raises(tq.DataError, match=r"t\.orc"):
        session.table("t").to_arrow()
