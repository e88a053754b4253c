"""Tables of several files: forms of paths, hive directories, and schemas that differ or are declared."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from rows import assert_same, sharded

SMALL = pa.table({"n": [1, 2, 3], "f": [1.5, None, 2.5]})


pytestmark = pytest.mark.usefixtures("folder")


def write(path, text):
    Path(path).write_text(text)


# --- paths ---


def test_path_forms(session, folder):
    (folder / "data/deep/.hidden").mkdir(parents=True)
    (folder / "data/_temporary").mkdir()
    for number, path in enumerate(["b.parquet", "a.parquet", "deep/c.parquet"]):
        pq.write_table(pa.table({"n": [number]}), f"data/{path}")
    for path in ["_meta.parquet", ".crc.parquet", "_temporary/x.parquet", "deep/.hidden/x.parquet"]:
        pq.write_table(pa.table({"n": [99]}), f"data/{path}")
    write("data/_SUCCESS", "")

    def numbers(path):
        session.register_parquet("t", path)
        return session.table("t").to_arrow()["n"].to_pylist()

    assert numbers("data/a.parquet") == [1]
    assert numbers(folder / "data/a.parquet") == [1]
    assert numbers(["data/b.parquet", "data/a.parquet"]) == [0, 1]
    assert numbers("data") == [1, 0, 2]
    assert numbers("data/") == [1, 0, 2]
    assert numbers("data/*.parquet") == [1, 0]
    assert numbers("data/**/*.parquet") == [1, 0, 2]
    assert numbers("data/[ab].parquet") == [1, 0]
    assert numbers("data/**/c.*") == [2]
    assert numbers(["data/deep", "data/a.parquet"]) == [2, 1]
    assert numbers("data/_meta.parquet") == [99]
    assert numbers("data/deep/.hidden") == [99]
    assert session.sql("SELECT n FROM 'data/**/*.parquet'").count() == 3
    joined = session.sql("SELECT x.n FROM 'data/*.parquet' x JOIN 'data' y ON x.n = y.n")
    assert sorted(joined.to_arrow()["n"].to_pylist()) == [0, 1]


def test_awkward_names(session, folder):
    for name in [
        "it's.parquet",
        "per%20cent.parquet",
        "sp ace.parquet",
        "日本.parquet",
        "a+b=c.parquet",
    ]:
        pq.write_table(SMALL, folder / name)
        session.register_parquet("t", name)
        assert session.table("t").count() == 3, name
        literal = name.replace("'", "''")
        assert session.sql(f"SELECT n FROM '{literal}'").count() == 3, name


# --- hive partitions ---


@pytest.fixture
def hive(folder):
    values = [
        ("2026-01-01", "1", "a%2Fb"),
        ("2026-01-02", "-7", "c%20d"),
        ("2026-01-03", "__HIVE_DEFAULT_PARTITION__", "%C3%A9"),
    ]
    for number, (day, bucket, kind) in enumerate(values):
        place = folder / f"hive/day={day}/bucket={bucket}/kind={kind}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"n": [number * 2, number * 2 + 1]}), place / "part.parquet")
    return "hive"


def test_hive_values_are_decoded_and_typed(session, hive):
    session.register_parquet("t", hive)
    schema = session.table("t").schema
    assert schema.names == ["n", "day", "bucket", "kind"]
    assert schema.field("day").type == pa.date32()
    assert schema.field("bucket").type == pa.int64()
    assert schema.field("bucket").nullable
    expected = [
        {"n": n, "day": dt.date(2026, 1, n // 2 + 1), "bucket": bucket, "kind": kind}
        for n, bucket, kind in [
            (0, 1, "a/b"), (1, 1, "a/b"), (2, -7, "c d"), (3, -7, "c d"), (4, None, "é"), (5, None, "é"),
        ]
    ]  # fmt: skip
    assert_same(session.table("t"), expected)


def test_hive_columns_appear_only_when_selected(session, hive):
    session.register_parquet("t", hive)
    assert session.sql("SELECT n FROM t").column_names == ["n"]
    assert_same(session.sql("SELECT kind FROM t WHERE n = 2"), [{"kind": "c d"}])
    loader, _ = tq.create_dataloader(path=hive, columns=["bucket", "n"], nulls={"bucket": 0})
    (batch,) = list(loader)
    assert list(batch) == ["bucket", "n"]
    assert batch["bucket"].tolist() == [1, 1, -7, -7, 0, 0]


@pytest.mark.parametrize(
    ("where", "rows", "files"),
    [
        ("day > '2026-01-01'", 4, 2),
        ("day = DATE '2026-01-02'", 2, 1),
        ("bucket IS NULL", 2, 1),
        ("bucket < 0 OR kind = 'a/b'", 4, 2),
        ("bucket > 1000", 0, 0),
        ("day > '2026-01-01' AND n < 3", 1, 2),
    ],
)
def test_hive_values_prune_files(session, hive, where, rows, files):
    session.register_parquet("t", hive)
    query = session.sql(f"SELECT n FROM t WHERE {where}")
    assert query.count() == rows
    assert len(sharded(query)) == rows
    plan = query.plan_shards()
    if files:
        assert plan.files == 3
        assert plan.files - plan.files_pruned <= files
    assert plan.num_splits <= files


def test_hive_off_demanded_declared(session, hive, folder):
    session.register_parquet("t", hive, partitioning=False)
    assert session.table("t").column_names == ["n"]
    declared = pa.schema([("n", pa.int64()), ("bucket", pa.string())])
    session.register_parquet("t", hive, schema=declared, partitioning="hive")
    assert session.table("t").schema.field("bucket").type == pa.string()
    pq.write_table(SMALL, folder / "plain.parquet")
    with pytest.raises(
        tq.ConfigError, match=r"demands key=value directories.*path: .*plain\.parquet"
    ):
        session.register_parquet("t", "plain.parquet", partitioning="hive")


@pytest.mark.slow
def test_hive_csv_and_workers(session, folder):
    for key in ("a", "b"):
        (folder / f"h/k={key}").mkdir(parents=True)
        write(folder / f"h/k={key}/t.csv", "n\n1\n2\n")
    session.register_csv("t", "h")
    expected = [{"n": n, "k": k} for k in "ab" for n in (1, 2)]
    assert_same(session.table("t"), expected, world_size=1, num_workers=2)


# --- schemas ---


def two_files(first, second):
    pq.write_table(first, "a.parquet")
    pq.write_table(second, "b.parquet")
    return ["a.parquet", "b.parquet"]


@pytest.mark.parametrize(
    ("first", "second", "wide"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
    ],
)
def test_safe_widening(session, first, second, wide):
    def column(kind):
        values = (
            ["1", "2"] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else [1, 2]
        )
        return pa.table({"x": pa.array(values, kind)})

    session.register_parquet("t", two_files(column(first), column(second)))
    assert session.table("t").schema.field("x").type == wide
    expected = column(first).cast(pa.schema([("x", wide)])).to_pylist()
    assert_same(session.table("t"), expected + expected)
    assert session.sql(f"SELECT x FROM t WHERE x = {expected[1]['x']!r}").count() == 2


def test_a_missing_nullable_column_is_null(session):
    files = two_files(pa.table({"n": [1], "extra": ["x"]}), pa.table({"n": [2]}))
    expected = [{"n": 1, "extra": "x"}, {"n": 2, "extra": None}]
    session.register_parquet("t", files)
    assert_same(session.table("t"), expected)
    session.register_parquet("t", files[::-1])
    assert_same(session.sql("SELECT n, extra FROM t"), expected[::-1])
    assert session.sql("SELECT n FROM t WHERE extra IS NULL").count() == 1


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"x": [1]}, {"x": ["a"]}, 'column "x" is Int64 in .*a.parquet and Utf8 in .*b.parquet'),
        ({"x": [1]}, {"x": [1.5]}, 'column "x" is Int64 in .*a.parquet and Float64 in .*b.parquet'),
        ({"x": [[1]]}, {"x": [1]}, 'column "x" is List'),
    ],
)
def test_files_that_disagree_are_named_with_the_column(session, first, second, message):
    with pytest.raises(tq.DataError, match=message):
        session.register_parquet("t", two_files(pa.table(first), pa.table(second)))


def test_a_missing_required_column_is_named(session):
    required = pa.schema([pa.field("n", pa.int64()), pa.field("k", pa.int64(), nullable=False)])
    files = two_files(pa.table({"n": [1], "k": [1]}, required), pa.table({"n": [2]}))
    with pytest.raises(
        tq.DataError, match=r'"k" is required .*a\.parquet .*missing in .*b\.parquet'
    ):
        session.register_parquet("t", files)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("b,a\nx,1\n", r'column 1 is "a" in .*a\.csv and "b" in .*b\.csv'),
        ("a,b,c\n1,x,3\n", r'column 3 is none in .*a\.csv and "c" in .*b\.csv'),
        ("a\n1\n", r'column 2 is "b" in .*a\.csv and none in .*b\.csv'),
        ("a,b\nword,x\n", r'column "a" is Int64 in .*a\.csv and Utf8 in .*b\.csv'),
    ],
)
def test_csv_files_that_disagree(session, second, message):
    write("a.csv", "a,b\n1,x\n")
    write("b.csv", second)
    with pytest.raises(tq.DataError, match=message):
        session.register_csv("t", ["a.csv", "b.csv"])


def test_declared_schemas(session):
    pq.write_table(SMALL, "t.parquet")
    session.register_parquet(
        "t", "t.parquet", schema=pa.schema([("f", pa.float32()), ("n", pa.int16())])
    )
    query = session.table("t")
    assert query.schema.names == ["f", "n"]
    assert query.schema.field("n").type == pa.int16()
    assert_same(query, [{"f": 1.5, "n": 1}, {"f": None, "n": 2}, {"f": 2.5, "n": 3}])
    with pytest.raises(tq.DataError, match='declared column "nn" is in no file; did you mean "n"'):
        session.register_parquet("t", "t.parquet", schema=pa.schema([("nn", pa.int16())]))


@pytest.mark.parametrize(
    ("name", "declared", "instead"),
    [
        ("t.csv", pa.large_string(), "Utf8"),
        ("t.csv", pa.binary(), "Utf8"),
        ("t.csv", pa.duration("s"), "Int64"),
        ("t.csv", pa.dictionary(pa.int8(), pa.string()), "Dictionary(Int32, Utf8)"),
        ("t.csv", pa.dictionary(pa.int32(), pa.int64()), "Int64"),
        ("t.csv", pa.binary(2), None),
        ("t.csv", pa.list_(pa.int32()), None),
        ("t.json", pa.dictionary(pa.int32(), pa.string()), "Utf8"),
        ("t.json", pa.list_(pa.dictionary(pa.int32(), pa.string())), None),
    ],
    ids=str,
)
def test_declared_types_that_text_does_not_become(session, name, declared, instead):
    write(name, "a,b\n1,2\n" if name == "t.csv" else '{"a": 1, "b": 2}\n')
    register = session.register_csv if name == "t.csv" else session.register_json
    schema = pa.schema([("a", pa.int64()), ("b", declared)])
    with pytest.raises(tq.UnsupportedTypeError, match='column "b" is declared') as error:
        register("t", name, schema=schema)
    assert (f"declare {instead}, and write arrow_cast" in str(error.value)) == bool(instead)


def test_declared_types_that_a_query_makes_of_others(session):
    write("t.csv", "a,b\n" + "".join(f"v{row},{row / 4}\n" for row in range(300)))
    index = pa.dictionary(pa.int16(), pa.string())
    session.register_csv("t", "t.csv", schema=pa.schema([("a", index), ("b", pa.float32())]))
    found = session.sql(
        "SELECT a, arrow_cast(a, 'LargeUtf8') AS c, arrow_cast(b, 'Float16') AS b FROM t"
    ).to_arrow()
    assert found.schema.types == [index, pa.large_string(), pa.float16()]
    assert found["a"].to_pylist() == found["c"].to_pylist() == [f"v{row}" for row in range(300)]


def test_duplicate_columns_in_one_file(session):
    write("t.csv", "a,a\n1,2\n")
    with pytest.raises(tq.DataError, match=r't\.csv has two columns named "a"'):
        session.register_csv("t", "t.csv")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, "t.parquet")
    with pytest.raises(tq.DataError, match=r't\.parquet has two columns named "a"'):
        session.register_parquet("t", "t.parquet")
