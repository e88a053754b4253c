"""Columns that the engine's own Parquet scan misreads, or cannot read, are read rightly by every path."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from rows import sharded

ROWS = 20_000


def delivered(query: str, session: tq.Session, ranks: int = 1, **options: Any) -> list[dict]:
    """Rows of all ranks, in batches that do not end with row groups."""
    return sharded(query, session=session, world_size=ranks, batch_size=777, **options)


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file by DuckDB, whose blocks of 256 the decoder cannot skip; and its rows."""
    file = tmp_path_factory.mktemp("differences") / "part.parquet"
    rows = f"SELECT i AS id, i * 3 AS x, 'k' || (i % 7) AS s FROM range({ROWS}) t(i)"
    duckdb.sql(
        f"COPY ({rows}) TO '{file}' (FORMAT parquet, PARQUET_VERSION V2, ROW_GROUP_SIZE 4096)"
    )
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert column.encodings == ("DELTA_BINARY_PACKED",)
    return file, f"({rows})"


QUERIES = [
    "SELECT id FROM {}",
    "SELECT id FROM {} WHERE x > 100",
    "SELECT id, x FROM {} WHERE s = 'k3'",
    "SELECT s FROM {} WHERE id % 7 = 0",
    "SELECT id FROM {} WHERE id % 3 = 0 AND x % 2 = 0",
    "SELECT SUM(x) AS x FROM {} WHERE s = 'k3'",
    "SELECT a.id FROM {0} a JOIN {0} b ON a.id = b.x WHERE b.s = 'k1'",
]


@pytest.mark.parametrize("query", QUERIES)
def test_blocks_that_the_decoder_cannot_pass_over(
    differences: tuple[Path, str], query: str
) -> None:
    file, rows = differences
    session = tq.Session()
    session.register_parquet("files", str(file))
    expected = sorted(duckdb.sql(query.format(rows)).fetchall())
    asked = session.sql(query.format("files"))
    assert sorted(tuple(row.values()) for row in asked.to_arrow().to_pylist()) == expected
    assert asked.count() == len(expected)
    assert asked.head(5).num_rows == min(5, len(expected))
    ranks = min(3, len(expected))
    found = delivered(query.format("files"), session, ranks=ranks)
    assert sorted(tuple(row.values()) for row in found) == expected


def test_a_limit_holds_over_several_such_files(
    differences: tuple[Path, str], tmp_path: Path
) -> None:
    for name in ["a", "b"]:
        (tmp_path / f"{name}.parquet").write_bytes(differences[0].read_bytes())
    session = tq.Session()
    session.register_parquet("files", str(tmp_path))
    for limit in [0, 1, 4096, ROWS, ROWS + 1, 3 * ROWS]:
        found = session.sql(f"SELECT id FROM files LIMIT {limit}").to_arrow()
        assert found["id"].to_pylist() == [n % ROWS for n in range(min(limit, 2 * ROWS))]


def test_a_part_of_a_row_group_in_the_middle_of_an_epoch(differences: tuple[Path, str]) -> None:
    session = tq.Session()
    session.register_parquet("files", str(differences[0]))
    query = "SELECT id, x, s FROM files"

    def loader(rank: int, ranks: int) -> Any:
        options: dict[str, Any] = {"rank": rank, "world_size": ranks, "output_format": "arrow"}
        return tq.create_dataloader(query, session=session, batch_size=500, **options)[0]

    first = loader(0, 1)
    batches = iter(first)
    seen = [row for _ in range(11) for row in next(batches).to_pylist()]
    for rank in range(3):
        rest = loader(rank, 3)
        rest.load_state_dict(first.state_dict())
        seen += [row for batch in rest for row in batch.to_pylist()]
    assert sorted(row["id"] for row in seen) == list(range(ROWS))
    assert all(row["x"] == 3 * row["id"] and row["s"] == f"k{row['id'] % 7}" for row in seen)


NEAR = [dt.datetime(2020, 1, 2, 3, 4, 5, 6), None, dt.datetime(1677, 9, 22)]
FAR = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1), *NEAR]


def old_times(file: Path, times: list[dt.datetime | None], **options: Any) -> None:
    """A file with times of twelve bytes, as Spark, Hive and Impala write them: without a note of their unit."""
    column = pa.array(times * 50, pa.timestamp("us"))
    table = pa.table({"id": range(len(column)), "at": column})
    pq.write_table(
        table,
        file,
        use_deprecated_int96_timestamps=True,
        store_schema=False,
        row_group_size=60,
        **options,
    )
    assert pq.ParquetFile(file).schema.column(1).physical_type == "INT96"


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False}, {"write_page_index": True, "data_page_size": 64}]
)
def test_old_times_that_nanoseconds_do_not_hold(tmp_path: Path, options: dict[str, Any]) -> None:
    file = tmp_path / "part.parquet"
    old_times(file, FAR, **options)
    session = tq.Session()
    session.register_parquet("files", str(file))
    query = "SELECT id, at FROM files"
    for read in [
        lambda: session.sql(query).to_arrow(),
        lambda: session.sql(f"{query} WHERE id % 2 = 0").to_arrow(),
        lambda: session.sql(f"{query} WHERE at > '2000-01-01'").count(),
        lambda: delivered(query, session),
        lambda: delivered(query, session, ranks=2),
        lambda: delivered(f"{query} WHERE id > 7", session, shuffle=True),
    ]:
        with pytest.raises(tq.DataError, match=r'column "at".*1677 to 2262.*timestamp\[us\]'):
            read()
    # Whoever does not read them is not told.
    assert session.sql("SELECT id FROM files").to_arrow().num_rows == 50 * len(FAR)


@pytest.mark.parametrize("unit", ["us", "ms", "s"])
def test_the_declared_unit_of_old_times_holds_them(tmp_path: Path, unit: str) -> None:
    file = tmp_path / "part.parquet"
    old_times(file, FAR)
    session = tq.Session()
    declared = pa.schema([("id", pa.int64()), ("at", pa.timestamp(unit))])
    session.register_parquet("files", str(file), schema=declared)
    times = pa.array(FAR * 50, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)
    expected = times.cast(pa.int64()).to_pylist()
    query = "SELECT id, at FROM files"
    found = session.sql(query).to_arrow()
    assert found.schema.field("at").type == pa.timestamp(unit)
    assert found["at"].cast(pa.int64()).to_pylist() == expected
    for ranks in [1, 2]:
        rows = sorted(delivered(query, session, ranks=ranks), key=lambda row: row["id"])
        assert [row["at"] for row in rows] == times.to_pylist()
    century = "arrow_cast('2500-01-01', 'Timestamp(Second, None)')"
    later = session.sql(f"{query} WHERE at > {century}").to_arrow()
    assert set(later["at"].to_pylist()) == {times[0].as_py()}


def test_old_times_that_nanoseconds_hold(tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    old_times(file, NEAR)
    session = tq.Session()
    session.register_parquet("files", str(file))
    found = session.sql("SELECT at FROM files").to_arrow()
    assert found.schema.field("at").type == pa.timestamp("ns")
    assert found["at"].cast(pa.timestamp("us")).to_pylist() == NEAR * 50
    rows = delivered("SELECT id, at FROM files WHERE id % 3 = 0", session)
    assert [row["at"] for row in rows] == [NEAR[0]] * 50


def test_old_times_inside_of_lists(tmp_path: Path) -> None:
    for times, is_read in [(NEAR, True), (FAR, False)]:
        file = tmp_path / f"{is_read}.parquet"
        lists = pa.array([times, [], None, times], pa.list_(pa.timestamp("us")))
        pq.write_table(
            pa.table({"at": lists}),
            file,
            use_deprecated_int96_timestamps=True,
            store_schema=False,
        )
        session = tq.Session()
        session.register_parquet("files", str(file))
        if is_read:
            assert len(delivered("SELECT at FROM files", session)) == 4
        else:
            with pytest.raises(tq.DataError, match="1677 to 2262"):
                delivered("SELECT at FROM files", session)


@pytest.mark.slow
def test_bloom_filters_of_decimals_leave_out_no_row(tmp_path: Path) -> None:
    """Decimals take as many bytes as their digits need, where the engine expects sixteen."""
    file = tmp_path / "part.parquet"
    digits = {"d5": (5, 2), "d18": (18, 2), "d30": (30, 2), "d38": (38, 2)}
    columns = {
        name: pa.array([Decimal(n % 10 - 5) for n in range(5000)], pa.decimal128(*type_))
        for name, type_ in digits.items()
    }
    filters = {name: {"ndv": 100} for name in digits}
    pq.write_table(pa.table(columns), file, row_group_size=1000, bloom_filter_options=filters)
    session = tq.Session()
    session.register_parquet("files", str(file))
    for name in digits:
        for condition, rows in [(f"{name} = 3", 500), (f"{name} IN (-2, 4, 77)", 1000)]:
            query = f"SELECT {name} FROM files WHERE {condition}"
            assert session.sql(query).to_arrow().num_rows == rows, condition
            assert session.sql(query).count() == rows, condition
            assert len(delivered(query, session)) == rows, condition
        assert len(delivered(f"SELECT {name} FROM files WHERE {name} = 77", session)) == 0
