"""Batches of an Iceberg table are traced to their snapshot, files and physical rows, deleted ones left out."""

import pyarrow.parquet as pq
import pytest

import iceberg_fixtures as fixtures
import tensorquery as tq


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mor_v2", "dv_v3"])
def test_rows_are_found_where_the_trace_says(name):
    session = tq.Session()
    session.register_iceberg_table("t", fixtures.open_fixture(name))
    query = session.sql("SELECT id FROM t WHERE id % 3 = 1")
    loader, dataset = tq.create_dataloader(query, batch_size=16, shuffle=True, split_rows=20)
    files = {}
    for step, batch in enumerate(loader):
        found = []
        for traced in dataset.trace(0, step, epoch=0).ranges:
            assert traced.snapshot_id == query.snapshots["t"]
            path = traced.path.removeprefix("file:")
            if path not in files:
                files[path] = pq.ParquetFile(path).read(["id"])["id"].to_pylist()
            rows = [row for start, end in traced.physical_rows for row in range(start, end)]
            found += [files[path][row] for row in rows]
        assert sorted(found) == sorted(batch["id"].tolist())
