"""A cluster of two executors stages a TPC-H join at scale factor 1 from an S3 server, and the loader's rows are the local run's."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tensorquery as tq
from iceberg_servers import fresh

FOLDER = Path(__file__).parents[2] / ".cache" / "tpch" / "1"
TABLES = {"lineitem": 6, "orders": 4, "customer": 2}

JOIN = """
    SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice, l_shipdate, o_orderpriority, o_totalprice, c_mktsegment, c_name
    FROM lineitem
    JOIN orders ON l_orderkey = o_orderkey
    JOIN customer ON o_custkey = c_custkey
    WHERE o_orderdate >= DATE '1995-01-01'
"""


def make_tables():
    if not (FOLDER / "complete").exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        for table, parts in TABLES.items():
            generator = Path(sys.executable).with_name("tpchgen-cli")
            words = ["-s", "1", f"--tables={table}", f"--parts={parts}", f"--output-dir={FOLDER}"]
            subprocess.run([generator, "parquet", *words, "--quiet"], check=True)
        (FOLDER / "complete").touch()
    return FOLDER


@pytest.fixture(scope="module")
def session(minio):
    """The tables, as objects of the store."""
    prefix = fresh("sf1")
    session = tq.Session(storage_options=minio.options)
    for table in TABLES:
        session.register_parquet(table, minio.upload(make_tables() / table, f"{prefix}/{table}"))
    return session


def sorted_rows(table):
    """By the key of the rows; pyarrow cannot sort views."""
    plain = [
        field.with_type(pa.string()) if field.type == pa.string_view() else field
        for field in table.schema
    ]
    table = table.cast(pa.schema(plain))
    return table.sort_by([("l_orderkey", "ascending"), ("l_linenumber", "ascending")])


def loaded(query, world_size, **options):
    """The rows of all ranks, which take the same number of steps."""
    batches, steps = [], set()
    for rank in range(world_size):
        loader, dataset = tq.create_dataloader(
            query,
            rank=rank,
            world_size=world_size,
            batch_size=65_536,
            output_format="arrow",
            stage="always",
            **options,
        )
        mine = list(loader)
        steps.add(len(mine))
        batches += mine
    assert len(steps) == 1
    return pa.Table.from_batches(batches), dataset.stages


def test_a_join_at_scale_factor_1(cluster, session, minio):
    place = f"{minio.root}/{fresh('stages')}"
    query = session.sql(JOIN)
    before = cluster.tasks()
    table, (stage,) = loaded(query, 3, stage_engine=cluster.url, stage_dir=place, shuffle=True)
    worked = [after - start for after, start in zip(cluster.tasks(), before, strict=True)]
    assert all(tasks > 0 for tasks in worked), f"finished tasks by executor: {worked}"
    local = query.to_arrow()
    assert table.num_rows == local.num_rows == stage.rows > 3_000_000
    assert sorted_rows(table).equals(sorted_rows(local))
    print(f"\n{stage.rows:,} rows, {stage.bytes / 2**20:,.0f} MiB, tasks by executor {worked}")
