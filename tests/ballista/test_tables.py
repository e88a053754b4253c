"""Which tables a cluster reads, where the stage is and what it says; what is refused says why."""

import json
import re
import socket

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import tensorquery as tq
from iceberg_fixtures import names, open_fixture
from iceberg_servers import fresh
from pyiceberg_tables import SIMPLE, simple
from rows import multiset
from stores import serve_minio
from support import write_parquet

AGGREGATE = "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k"


@pytest.fixture
def place(minio):
    return f"{minio.root}/{fresh('stages')}"


@pytest.fixture
def table():
    return pa.table({"k": [n % 7 for n in range(1000)], "v": range(1000)})


def session_of(minio, folder, **options):
    session = tq.Session(storage_options=minio.options)
    session.register_parquet("t", minio.upload(folder, fresh("tables")), **options)
    return session


def rows(loader):
    return [row for batch in loader for row in batch.to_pylist()]


def loader_of(query, cluster, place, **options):
    options = {"stage_engine": cluster.url, "stage_dir": place, **options}
    return tq.create_dataloader(query, batch_size=100, output_format="arrow", **options)


def refused(query, cluster, place, **options):
    with pytest.raises(tq.QueryError) as error:
        loader_of(query, cluster, place, **options)
    assert 'stage_engine="ballista://…" cannot compute this query' in str(error.value)
    return str(error.value)


# ------------------------------------------------------------------------------------------------
# Files.


def test_names_of_files_are_no_patterns_and_not_decoded(minio, cluster, place, tmp_path, table):
    folder = tmp_path / "a b" / "50%25 off"
    folder.mkdir(parents=True)
    pq.write_table(table.slice(0, 400), folder / "ünd #1.data")
    pq.write_table(table.slice(400), folder / "x?y=2+3.parquet")
    session = session_of(minio, tmp_path, partitioning=False)
    query = session.sql(AGGREGATE)
    assert multiset(rows(loader_of(query, cluster, place)[0])) == multiset(
        query.to_arrow().to_pylist()
    )


def test_columns_from_hive_directories(minio, cluster, place, tmp_path, table):
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        for kind in (1, 2):
            folder = tmp_path / f"day={day}" / f"kind={kind}"
            folder.mkdir(parents=True)
            pq.write_table(table.slice(0, 100 * kind + int(day[-1])), folder / "0.parquet")
    session = session_of(minio, tmp_path)
    for sql in (
        "SELECT day, kind, k, count(*) AS n, sum(v) AS s FROM t GROUP BY day, kind, k",
        "SELECT k, count(*) AS n FROM t WHERE day >= '2026-01-02' AND kind = 2 GROUP BY k",
        "SELECT kind, count(*) AS n FROM t WHERE day <> '2026-01-01' GROUP BY kind ORDER BY kind",
    ):
        query = session.sql(sql)
        loader, dataset = loader_of(query, cluster, place)
        assert multiset(rows(loader)) == multiset(query.to_arrow().to_pylist()), sql
        assert dataset.stages[0].seconds is not None


def test_files_with_other_columns_and_types(minio, cluster, place, tmp_path):
    pq.write_table(
        pa.table({"k": pa.array([1, 2], pa.int32()), "v": [1, 2]}), tmp_path / "0.parquet"
    )
    pq.write_table(pa.table({"k": [2, 2**40], "w": ["x", "y"]}), tmp_path / "1.parquet")
    query = session_of(minio, tmp_path).sql(
        "SELECT k, sum(v) AS v, max(w) AS w FROM t WHERE k > 1 GROUP BY k"
    )
    assert multiset(rows(loader_of(query, cluster, place)[0])) == multiset(
        query.to_arrow().to_pylist()
    )


def test_conditions_on_casts_leave_out_no_row_group(minio, cluster, place, tmp_path):
    numbers = pa.table({"s": [str(n) for n in range(1000)], "v": range(1000)})
    write_parquet(tmp_path, numbers, files=2, row_group=50)
    query = session_of(minio, tmp_path).sql(
        "SELECT count(*) AS n, sum(v) AS s FROM t WHERE CAST(s AS INT) BETWEEN 95 AND 205"
    )
    assert rows(loader_of(query, cluster, place)[0]) == [{"n": 111, "s": sum(range(95, 206))}]


def test_a_file_that_changes_meanwhile_is_an_error(minio, cluster, place, tmp_path, table):
    write_parquet(tmp_path, table, files=2)
    prefix = fresh("changed")
    session = tq.Session(storage_options=minio.options)
    session.register_parquet("t", minio.upload(tmp_path, prefix))
    query = session.sql(AGGREGATE)
    first = sorted(tmp_path.iterdir())[0]
    pq.write_table(table.slice(0, 10), first)
    minio.put(f"{prefix}/{first.name}", first.read_bytes())
    with pytest.raises(tq.DataError, match="changed"):
        loader_of(query, cluster, place)
    assert all(stage.rows is None for stage in tq.list_stages(place, storage_options=minio.options))


# ------------------------------------------------------------------------------------------------
# Iceberg.


@pytest.fixture
def lake(minio, tmp_path):
    """A catalog whose tables lie in the store."""
    catalog = SqlCatalog(
        "lake",
        **{
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"{minio.root}/{fresh('lake')}",
            "s3.endpoint": minio.endpoint,
            "s3.access-key-id": minio.key,
            "s3.secret-access-key": minio.secret,
            "s3.region": minio.options["aws_region"],
        },
    )
    catalog.create_namespace("ns")
    return catalog


def iceberg(minio, table):
    session = tq.Session(storage_options=minio.options)
    properties = {
        name: value for name, value in table.io.properties.items() if name.startswith("s3.")
    }
    session.register_iceberg_table("t", table.metadata_location, properties=properties)
    return session.sql("SELECT k, count(*) AS n, max(id) AS last, min(s) AS s FROM t GROUP BY k")


def test_an_iceberg_table_is_its_pinned_files(minio, cluster, place, lake):
    table = lake.create_table("ns.plain", SIMPLE)
    for start in (0, 400, 700):
        table.append(simple(start, start + 300))
    query = iceberg(minio, table)
    # Rows appended after the pin are not read.
    table.append(simple(5000, 5100))
    expected = query.to_arrow().to_pylist()
    assert max(row["last"] for row in expected) < 5000
    assert multiset(rows(loader_of(query, cluster, place)[0])) == multiset(expected)


DELETED = ("mor_v2", "dv_v3", "eq_keys")


# Refused before any engine is asked: data files in Avro, and types that no tensor has.
UNREADABLE = {"avro_v2", "unknown_v3", "variant_v3"}


@pytest.mark.parametrize("name", sorted(set(names()) - UNREADABLE))
def test_a_table_of_spark_is_read_as_here_or_refused(cluster, place, name, minio):
    session = tq.Session(storage_options=minio.options)
    session.register_iceberg_table("t", open_fixture(name))
    query = session.sql("SELECT * FROM t")
    try:
        loader, _ = loader_of(query, cluster, place, stage="always")
    except tq.QueryError as error:
        said = str(error)
        assert 'stage_engine="ballista://…" cannot compute this query' in said
        # Not because of what a scan of plain files may have.
        assert re.search(r"delete file|under that name|is not Parquet|has no files", said), said
        assert name not in DELETED or "has rows that a delete file deletes" in said
    else:
        assert name not in DELETED
        assert multiset(rows(loader)) == multiset(query.to_arrow().to_pylist())


def test_a_column_that_was_renamed_is_refused_and_others_are_read(minio, cluster, place, lake):
    table = lake.create_table("ns.renamed", SIMPLE)
    table.append(simple(0, 300))
    with table.update_schema() as update:
        update.rename_column("s", "text")
        update.add_column("more", SIMPLE.find_type("id"))
    session = tq.Session(storage_options=minio.options)
    properties = {
        name: value for name, value in table.io.properties.items() if name.startswith("s3.")
    }
    session.register_iceberg_table("t", table.metadata_location, properties=properties)
    for column in ("text", "more"):
        said = refused(
            session.sql(f"SELECT k, max({column}) AS m FROM t GROUP BY k"), cluster, place
        )
        assert f"has no column {json.dumps(column)} under that name" in said
        assert "rewrite_data_files" in said
    query = session.sql("SELECT k, count(*) AS n FROM t GROUP BY k")
    assert multiset(rows(loader_of(query, cluster, place)[0])) == multiset(
        query.to_arrow().to_pylist()
    )


# ------------------------------------------------------------------------------------------------
# The stage.


def test_a_stage_is_built_once_and_is_not_the_local_one(minio, cluster, place, tmp_path, table):
    write_parquet(tmp_path, table, files=2)
    query = session_of(minio, tmp_path).sql(AGGREGATE)
    first, one = loader_of(query, cluster, place)
    again, two = loader_of(query, cluster, place)
    assert one.stages[0].seconds is not None
    assert two.stages[0].seconds is None
    assert one.stages[0].path == two.stages[0].path
    assert rows(first) == rows(again)
    _, local = loader_of(query, cluster, place, stage_engine=None)
    assert local.stages[0].seconds is not None
    assert len(tq.list_stages(place, storage_options=minio.options)) == 2
    names = {
        found["Key"].rpartition("/")[2]
        for found in minio.client().list_objects_v2(
            Bucket=minio.bucket, Prefix=place.removeprefix(f"{minio.root}/")
        )["Contents"]
    }
    assert {"part-00000.parquet", "part-00000.arrow", "manifest.json"} <= names


def test_ranks_workers_and_states_read_it_as_any_table(minio, cluster, place, tmp_path, table):
    write_parquet(tmp_path, table, files=2)
    query = session_of(minio, tmp_path).sql(
        "SELECT k, v, row_number() OVER (ORDER BY v) AS r FROM t"
    )
    expected = multiset(query.to_arrow().to_pylist())
    loader, _ = loader_of(query, cluster, place, num_workers=2, shuffle=True)
    assert multiset(rows(loader)) == expected
    loader, _ = loader_of(query, cluster, place, shuffle=True)
    batches = iter(loader)
    seen = [row for _ in range(3) for row in next(batches).to_pylist()]
    state = loader.state_dict()
    resumed, _ = loader_of(query, cluster, place, shuffle=True)
    resumed.load_state_dict(state)
    assert multiset(seen + rows(resumed)) == expected


def test_a_part_below_a_local_rest(minio, cluster, place, tmp_path, table):
    """Only the aggregate is staged; filters above its join with a small table stay for the workers."""
    write_parquet(tmp_path, table, files=2)
    session = session_of(minio, tmp_path)
    query = session.sql(
        "SELECT t.v, a.n FROM t JOIN (SELECT k, count(*) AS n FROM t GROUP BY k HAVING count(*) > 2) a ON t.k = a.k "
        "UNION ALL SELECT max(v), min(k) FROM t"
    )
    loader, dataset = loader_of(query, cluster, place)
    assert multiset(rows(loader)) == multiset(query.to_arrow().to_pylist())
    assert dataset.stages


def test_no_row_is_a_stage_without_rows(minio, cluster, place, tmp_path, table):
    write_parquet(tmp_path, table)
    query = session_of(minio, tmp_path).sql("SELECT k, sum(v) AS s FROM t WHERE v < 0 GROUP BY k")
    loader, dataset = loader_of(query, cluster, place)
    assert rows(loader) == []
    assert dataset.stages[0].rows == 0


def test_no_secret_is_in_a_stage_or_in_what_is_said(minio, cluster, place, tmp_path, table):
    write_parquet(tmp_path, table)
    session = session_of(minio, tmp_path)
    loader, dataset = loader_of(session.sql(AGGREGATE), cluster, place)
    client = minio.client()
    prefix = place.removeprefix(f"{minio.root}/")
    listed = client.list_objects_v2(Bucket=minio.bucket, Prefix=prefix)["Contents"]
    contents = [
        client.get_object(Bucket=minio.bucket, Key=found["Key"])["Body"].read() for found in listed
    ]
    with pytest.raises(tq.DataError) as failed:
        loader_of(session.sql("SELECT k, sum(1 / (v - 5)) AS s FROM t GROUP BY k"), cluster, place)
    assert "could not compute the stage" in str(failed.value)
    texts = [repr(dataset.stages), json.dumps(loader.state_dict()), str(failed.value)]
    for content in [*contents, *(text.encode() for text in texts)]:
        assert minio.secret.encode() not in content
    # Nor was it sent: the cluster has it from its environment.
    assert minio.secret not in (cluster.folder / "scheduler" / "log").read_text()


# ------------------------------------------------------------------------------------------------
# Queries that are refused.


def test_what_a_cluster_cannot_compute_is_named(minio, cluster, place, tmp_path, table):
    write_parquet(tmp_path, table)
    session = session_of(minio, tmp_path)
    session.register_table("memory", table)
    session.register_udf("twice", lambda v: v, [pa.int64()], pa.int64(), "immutable")
    for sql, why in {
        "SELECT k, count(*) AS n FROM memory GROUP BY k": '"memory" is in the memory of this process',
        "SELECT k, max(twice(v)) AS m FROM t GROUP BY k": "twice() is a Python function",
        "SELECT k, random() AS r FROM t": "random() gives another value on every call",
        "SELECT k FROM t INTERSECT SELECT v FROM t": "INTERSECT",
        "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 5) SELECT n FROM c": "recursive CTE",
        "SELECT count(*) AS n FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (1)": "TABLESAMPLE",
        "SELECT a.k, b.v FROM t a LEFT JOIN t b ON a.v > b.v + 990": "without an equality",
    }.items():
        assert why in refused(session.sql(sql), cluster, place, stage="always"), sql
    assert not any(stage.rows for stage in tq.list_stages(place, storage_options=minio.options))


def test_a_store_that_executors_write_and_this_session_does_not_read(cluster, tmp_path, table):
    """Nothing is there where the stage should be, and the message says why that may be."""
    write_parquet(tmp_path / "t", table)
    with serve_minio() as other:
        session = tq.Session(storage_options=other.options)
        session.register_parquet("t", str(tmp_path / "t"), storage_options={})
        with pytest.raises(tq.StorageError, match="AWS_ENDPOINT"):
            loader_of(session.sql(AGGREGATE), cluster, f"{other.root}/stages")


def test_a_scheduler_that_is_not_there(minio, place, tmp_path, table):
    write_parquet(tmp_path, table)
    query = session_of(minio, tmp_path).sql(AGGREGATE)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"ballista://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(tq.StorageError, match="cannot be reached"):
            tq.create_dataloader(query, stage_engine=url, stage_dir=place)


def test_a_folder_that_all_machines_share(minio, cluster, tmp_path, table):
    """As every folder of one machine is."""
    write_parquet(tmp_path / "t", table)
    query = session_of(minio, tmp_path / "t").sql(AGGREGATE)
    loader, dataset = loader_of(query, cluster, str(tmp_path / "stages"))
    assert multiset(rows(loader)) == multiset(query.to_arrow().to_pylist())
    assert dataset.stages[0].path.startswith(str(tmp_path / "stages"))
