"""All ranks of a process group read the snapshot that the first of them pinned, whatever was committed meanwhile."""

import pyarrow as pa
import pytest
import torch.distributed as dist
from pyiceberg.catalog.sql import SqlCatalog

import ranks
import tensorquery as tq

pytestmark = pytest.mark.slow

ROWS = 101


def catalog_of(folder):
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))


def read(rank, world_size, folder, order):
    """Make a loader in the order of `order`, with a commit between any two ranks; then once more after a refresh."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        session = tq.Session()
        session.register_iceberg("lake", {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"})
        for turn in order:
            if turn == rank:
                sql = "SELECT id FROM lake.ns.t WHERE id >= 0"
                loader, dataset = tq.create_dataloader(sql, session=session, batch_size=4)
                catalog_of(folder).load_table("ns.t").append(pa.table({"id": [1000 + turn]}))
            dist.barrier()
        first = [value for batch in loader for value in batch["id"].tolist()]
        changes = dataset.refresh()
        second = [value for batch in loader for value in batch["id"].tolist()]
        return first, len(changes), second
    finally:
        dist.destroy_process_group()


def test_all_ranks_read_the_snapshot_of_the_first(tmp_path):
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("ns")
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    catalog.create_table("ns.t", rows.schema).append(rows)
    found = ranks.run(read, 3, tmp_path, [1, 0, 2])
    assert sorted(value for first, _, _ in found for value in first) == [*range(ROWS)]
    assert [changes for _, changes, _ in found] == [1, 1, 1]
    after = sorted(value for _, _, second in found for value in second)
    assert after == [*range(ROWS), 1000, 1001, 1002]
