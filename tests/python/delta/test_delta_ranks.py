"""All ranks of a process group read the version of a Delta table that the first of them pinned, whatever was committed meanwhile."""

import deltalake
import pyarrow as pa
import pytest
import torch.distributed as dist

import ranks
import tensorquery as tq

pytestmark = pytest.mark.slow

ROWS = 101


def append(place, ids):
    deltalake.write_deltalake(place, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


def read(rank, world_size, place, order):
    """Make a loader in the order of `order`, with a commit between any two ranks; then once more after a refresh."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        for turn in order:
            if turn == rank:
                loader, dataset = tq.create_dataloader(path=place, batch_size=4)
                append(place, [1000 + turn])
            dist.barrier()
        first = [value for batch in loader for value in batch["id"].tolist()]
        changes = dataset.refresh()
        second = [value for batch in loader for value in batch["id"].tolist()]
        return first, [(change.before, change.after) for change in changes], second
    finally:
        dist.destroy_process_group()


def test_all_ranks_read_the_version_of_the_first(tmp_path):
    place = str(tmp_path / "t")
    append(place, range(ROWS))
    found = ranks.run(read, 3, place, [1, 0, 2])
    assert sorted(value for first, _, _ in found for value in first) == [*range(ROWS)]
    assert [changes for _, changes, _ in found] == [[(0, 3)]] * 3
    after = sorted(value for _, _, second in found for value in second)
    assert after == [*range(ROWS), 1000, 1001, 1002]
