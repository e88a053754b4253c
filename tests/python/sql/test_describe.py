"""Descriptions of a query's rows: statistics agree with other libraries; samples are fair and can be repeated."""

import datetime as dt
import decimal
import math
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from support import COLUMNS, random_table, write_csv

ROWS = 400


def every_type():
    """Columns of many types, all with some nulls."""
    table = random_table(np.random.default_rng(5), ROWS, list(COLUMNS))
    more = {
        "null": pa.nulls(ROWS),
        "view": pa.array(["a", "b", None, "d"] * (ROWS // 4), pa.string_view()),
        "long": pa.array([dt.timedelta(seconds=n) for n in range(ROWS)]),
        "half": pa.array(np.arange(ROWS, dtype=np.float16)),
        "wide": pa.array([decimal.Decimal(n) for n in range(ROWS)], pa.decimal256(50, 2)),
        "nanos": pa.array(range(0, 1000 * ROWS, 1000), pa.timestamp("ns")),
        "coded": pa.array([3, None, 1, 2] * (ROWS // 4), pa.int64()).dictionary_encode(),
        "map": pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int32())),
        "fixed": pa.array([b"abc"] * ROWS, pa.binary(3)),
        "span": pa.array([(1, 2, 3), None] * (ROWS // 2), pa.month_day_nano_interval()),
    }
    for name, values in more.items():
        table = table.append_column(name, values)
    return table


@pytest.fixture
def session():
    session = tq.Session()
    session.register_table("t", every_type())
    return session


def described(query):
    return {row.pop("column"): row for row in query.describe().to_pylist()}


def test_every_column_of_every_type_is_described(session):
    table = every_type()
    found = described(session.table("t"))
    assert list(found) == table.column_names
    for name, row in found.items():
        nulls = table[name].null_count
        assert (row["count"], row["nulls"]) == (ROWS - nulls, nulls), name
    for name in ("list", "struct", "map", "null", "long", "fixed", "span"):
        assert {found[name][key] for key in ("min", "max", "mean", "std", "approx_distinct")} == {
            None
        }, name
    assert found["raw"]["approx_distinct"] > 100
    assert found["raw"]["min"] is None


@pytest.mark.parametrize("name", ["id", "k", "i8", "i32", "u64", "f32", "half", "coded", "flag", "price", "wide"])  # fmt: skip
def test_statistics_of_numbers_are_those_of_numpy(session, name):
    values = every_type()[name]
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    found = described(session.table("t"))[name]
    numbers = np.array([float(value) for value in values.drop_null().to_pylist()])
    if name == "flag":
        assert (found["min"], found["max"]) == ("false", "true")
    else:
        assert float(found["min"]) == pytest.approx(numbers.min())
        assert float(found["max"]) == pytest.approx(numbers.max())
    assert found["mean"] == pytest.approx(numbers.mean())
    assert found["std"] == pytest.approx(numbers.std(ddof=1))
    distinct = len(set(numbers.tolist()))
    assert found["approx_distinct"] == pytest.approx(distinct, rel=0.1, abs=1)


def test_ends_of_texts_and_times_can_be_written_in_sql(session):
    table = every_type()
    found = described(session.table("t"))
    for name, kind in (("s", "VARCHAR"), ("big", "VARCHAR"), ("code", "VARCHAR"), ("view", "VARCHAR"), ("day", "DATE"), ("moment", "TIMESTAMP"), ("nanos", "TIMESTAMP")):  # fmt: skip
        low, high = (found[name][end].replace("'", "''") for end in ("min", "max"))
        within = f"{name} BETWEEN CAST('{low}' AS {kind}) AND CAST('{high}' AS {kind})"
        rows = session.sql(f"SELECT count(*) AS n FROM t WHERE {within}").to_arrow()["n"][0]
        assert rows.as_py() == ROWS - table[name].null_count, name
        assert found[name]["mean"] is None
        assert found[name]["approx_distinct"] >= 3


def test_nan_is_a_value_and_greater_than_all_others(session):
    found = described(session.sql("SELECT v FROM t"))["v"]
    assert found["max"] == "NaN"
    assert math.isnan(found["mean"])
    whole = described(session.sql("SELECT v FROM t WHERE NOT isnan(v)"))["v"]
    assert float(whole["max"]) < 10


def test_a_summary_says_what_duckdb_says_of_a_file(tmp_path):
    table = random_table(np.random.default_rng(1), 1000, ["i32", "s", "day"])
    pq.write_table(table, tmp_path / "t.parquet")
    session = tq.Session()
    query = session.sql(f"SELECT id, k, i32, s, day FROM '{tmp_path}/t.parquet' WHERE k < 5")
    found = described(query)
    rows = duckdb.sql(
        f"SUMMARIZE SELECT id, k, i32, s, day FROM '{tmp_path}/t.parquet' WHERE k < 5"
    )
    for row in rows.fetchall():
        summary = dict(zip(rows.columns, row, strict=True))
        mine = found[summary["column_name"]]
        assert (mine["min"], mine["max"]) == (summary["min"], summary["max"])
        assert mine["count"] + mine["nulls"] == summary["count"]
        if mine["mean"] is not None:
            assert mine["mean"] == pytest.approx(float(summary["avg"]))
            assert mine["std"] == pytest.approx(float(summary["std"]))


def test_names_of_columns_may_be_anything():
    session = tq.Session()
    names = ["Cap", "a b", 'say "hi"', "0_count", "rows", "größe", "count(*)"]
    session.register_table("t", pa.table({name: [1, None, 3] for name in names}))
    found = described(session.table("t"))
    assert list(found) == names
    assert all((row["count"], row["nulls"], row["max"]) == (2, 1, "3") for row in found.values())


def test_a_query_without_rows_or_with_functions_of_the_time_is_described(session):
    none = described(session.sql("SELECT id, s FROM t WHERE id < 0"))
    assert none["id"] == {"type": "Int64", "count": 0, "nulls": 0, "min": None, "max": None, "mean": None, "std": None, "approx_distinct": 0}  # fmt: skip
    query = session.sql("SELECT now() AS at, id FROM t;")
    assert described(query)["at"]["min"][:16] == query.moment[:16].replace("T", " ")


def test_what_was_narrowed_is_described(session):
    found = described(session.table("t").select(["k", "id"], "id >= 100"))
    assert list(found) == ["k", "id"]
    assert found["id"]["min"] == "100"


# --- samples ---


def test_a_sample_comes_again_and_another_seed_gives_another(session):
    query = session.table("t")
    first = query.sample(20, seed=3)
    assert first["id"].to_pylist() == query.sample(20, seed=3)["id"].to_pylist()
    assert first["id"].to_pylist() != query.sample(20, seed=4)["id"].to_pylist()
    assert first["id"].to_pylist() == sorted(set(first["id"].to_pylist()))
    assert first.num_rows == 20
    assert first.schema == query.schema
    # Rows stay whole, whatever their types.
    stored = every_type()
    for name in first.column_names:
        expected = [str(stored[name][number]) for number in first["id"].to_pylist()]
        assert [str(value) for value in first[name]] == expected, name


def test_a_sample_has_as_many_rows_as_there_are(session):
    query = session.sql("SELECT id FROM t WHERE id < 5")
    assert query.sample(5)["id"].to_pylist() == query.sample(99)["id"].to_pylist() == [*range(5)]
    assert query.sample(0).num_rows == 0
    assert query.sample(0).schema == query.schema
    assert session.sql("SELECT id FROM t WHERE id < 0").sample().num_rows == 0
    assert session.table("t").sample().num_rows == 10


def test_every_row_is_as_likely_as_any_other(tmp_path):
    # More rows than are held at a time, so that some are let go.
    rows, drawn = 60_000, 2_000
    session = tq.Session()
    session.register_table("t", pa.table({"x": range(rows)}))
    hits = np.zeros(rows)
    for seed in range(15):
        chosen = session.table("t").sample(drawn, seed=seed)["x"].to_numpy()
        assert len(set(chosen.tolist())) == drawn
        hits[chosen] += 1
    parts = hits.reshape(60, -1).sum(axis=1)
    expected = 15 * drawn / 60
    # Chi-square of 59 degrees of freedom: above 110 once in 50,000.
    assert ((parts - expected) ** 2 / expected).sum() < 110
    # 1 - (29/30)^15 of the rows, if draws of different seeds have nothing to do with each other.
    assert (hits > 0).mean() == pytest.approx(0.3986, abs=0.01)


def test_a_sample_does_not_depend_on_the_batches_that_rows_come_in(tmp_path):
    table = pa.table({"x": range(5000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=77)
    samples = []
    for source in (table, pa.concat_tables([table.slice(n, 1000) for n in range(0, 5000, 1000)])):
        session = tq.Session()
        session.register_table("t", source)
        samples.append(session.table("t").sample(50, seed=9))
    session.register_parquet("f", tmp_path / "a.parquet")
    samples.append(session.table("f").sample(50, seed=9))
    assert len({tuple(one["x"].to_pylist()) for one in samples}) == 1


@pytest.mark.parametrize(("rows", "seed"), [(-1, 0), (1.5, 0), ("3", 0), (3, -1), (3, None)])
def test_a_sample_wants_whole_numbers(session, rows, seed):
    with pytest.raises(tq.ConfigError, match=r"(rows|seed)="):
        session.table("t").sample(rows, seed=seed)


def test_what_cannot_be_read_is_an_error_of_ours(session, tmp_path):
    pq.write_table(pa.table({"x": [1, 0]}), tmp_path / "a.parquet")
    session.register_parquet("f", tmp_path / "a.parquet")
    divided, whole = session.sql("SELECT 1 / x AS y FROM f"), session.table("f")
    for ask in (divided.describe, divided.sample, divided.to_pandas, divided.to_polars):
        with pytest.raises(tq.DataError, match=r"^Divide by zero"):
            ask()
    (tmp_path / "a.parquet").unlink()
    for ask in (whole.describe, whole.sample, whole.to_pandas, whole.to_polars):
        with pytest.raises(tq.DataError, match=r"^file .*a\.parquet vanished"):
            ask()


# --- other libraries ---


def test_rows_go_to_pandas_and_polars(tmp_path):
    session = tq.Session()
    folder = write_csv(tmp_path / "t", pa.table({"x": [1, 2, 3], "s": ["a", None, "c"]}))
    session.register_csv("t", folder)
    query = session.sql("SELECT x * 2 AS y, s FROM t")
    assert query.to_pandas()["y"].tolist() == [2, 4, 6]
    assert query.to_polars().rows() == [(2, "a"), (4, None), (6, "c")]
    assert query.to_polars().schema.names() == query.to_pandas().columns.tolist()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_a_library_the_error_says_what_to_install(session, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"to_{library}\(\) needs {library}: pip install 'tensorquery\[{library}\]'"):  # fmt: skip
        getattr(session.sql("SELECT id FROM t"), f"to_{library}")()
