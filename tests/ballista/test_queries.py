"""A cluster stages DuckDB's answer to the same SQL, in its order where it has one, or refuses it: never another row.

The queries are those of `any_sql_queries.py`: TPC-H, and further ones for every case.
"""

import duckdb
import pyarrow as pa
import pytest

import tensorquery as tq
from answers import assert_same_answer
from any_sql_queries import OTHERS, TPCH, duck, is_ordered, loaded  # noqa: F401 (duck is a fixture)
from iceberg_servers import fresh
from support import write_parquet
from tpch_data import TABLES

REFUSED = {
    "except": "INTERSECT, EXCEPT",
    "except_all": "INTERSECT, EXCEPT",
    "intersect": "INTERSECT, EXCEPT",
    "intersect_all": "INTERSECT, EXCEPT",
    "limit_without_order": "OFFSET without LIMIT",
    "nested_ctes": "without an equality",
    "not_in_nulls": "NOT IN",
    "recursive_graph": "recursive CTE",
    "recursive_numbers": "recursive CTE",
    "scalar_subquery": "without an equality",
    "vocabulary": "string_to_array",
    "volatile": "gives another value on every call",
    "window_sequences": "make_array",
}
"""Queries that a cluster would answer differently, or not at all, and what the error says of them."""


@pytest.fixture(scope="module")
def folder(tpch):
    return tpch


@pytest.fixture(scope="module")
def tables(tpch, minio):
    """The tables of TPC-H in the store."""
    prefix = fresh("tpch")
    session = tq.Session(storage_options=minio.options)
    for table in TABLES:
        session.register_parquet(table, minio.upload(tpch / table, f"{prefix}/{table}"))
    return session


@pytest.fixture(scope="module")
def place(minio):
    return f"{minio.root}/{fresh('stages')}"


@pytest.mark.parametrize("path", TPCH + OTHERS, ids=lambda path: path.stem)
def test_a_cluster_gives_duckdbs_answer_or_an_error(duck, tables, cluster, place, path):  # noqa: F811
    sql = path.read_text()
    query = tables.sql(sql)
    options = {"stage": "always", "stage_engine": cluster.url, "stage_dir": place}
    if path.stem in REFUSED:
        with pytest.raises(tq.QueryError, match=REFUSED[path.stem]) as error:
            tq.create_dataloader(query, **options)
        assert "stage_engine=" in str(error.value)
        return
    expected = duck.sql(sql).to_arrow_table()
    actual = loaded(query, 1, expected.num_rows, **options)
    assert_same_answer(actual, expected, ordered=is_ordered(duck, sql))


def test_most_queries_run_on_a_cluster():
    names = {path.stem for path in TPCH + OTHERS}
    assert set(REFUSED) <= names
    assert len(REFUSED) < len(names) / 3
    assert not {path.stem for path in TPCH} & set(REFUSED)


@pytest.fixture(scope="module")
def two_tables(minio, tmp_path_factory):
    """Tables a and b, in three files each, with keys that are NULL and keys without a match on either side."""
    keys = pa.array([None if n % 11 == 0 else n % 97 for n in range(3000)], pa.int64())
    other = pa.array([None, *(n * 2 for n in range(70))], pa.int64())
    made = {
        "a": pa.table({"k": keys, "v": range(3000)}),
        "b": pa.table({"k": other, "w": range(0, 7100, 100)}),
    }
    session = tq.Session(storage_options=minio.options)
    for name, table in made.items():
        folder = tmp_path_factory.mktemp(name)
        write_parquet(folder, table, files=3)
        session.register_parquet(name, minio.upload(folder, fresh("joins")))
    return session, made


@pytest.mark.parametrize("more", ["", "AND a.v < b.w"])
@pytest.mark.parametrize("kind", ["INNER", "LEFT", "RIGHT", "FULL"])
def test_joins_keep_the_rows_without_a_match(two_tables, cluster, place, kind, more):
    session, made = two_tables
    sql = f"SELECT a.k, b.k AS other, a.v, b.w FROM a {kind} JOIN b ON a.k = b.k {more}"
    with duckdb.connect() as connection:
        for name, table in made.items():
            connection.register(name, table)
        expected = connection.sql(sql).to_arrow_table()
    options = {"stage": "always", "stage_engine": cluster.url, "stage_dir": place}
    actual = loaded(session.sql(sql), 1, expected.num_rows, **options)
    assert_same_answer(actual, expected)
