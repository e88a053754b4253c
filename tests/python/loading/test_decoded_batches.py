"""Numbers are delivered in the memory into which they were decoded, since decoded batches end where delivered
batches end."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import tensorquery as tq

FILES = (10_000, 15_000, 7300, 40_960, 3)
GROUP = 7000
LENGTH = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files whose rows and row groups no batch size divides."""
    folder = tmp_path_factory.mktemp("uneven")
    first = 0
    for number, rows in enumerate(FILES):
        ids = np.arange(first, first + rows)
        vectors = np.repeat(ids.astype(np.float32), LENGTH)
        table = pa.table(
            {
                "id": ids,
                "half": ids / 2,
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), LENGTH),
                "text": [str(number) for number in ids],
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=GROUP)
        first += rows
    return folder


def borders() -> list[int]:
    """The first rows of all row groups."""
    starts = itertools.accumulate(FILES, initial=0)
    return [
        start + row
        for start, rows in zip(starts, FILES, strict=False)
        for row in range(0, rows, GROUP)
    ]


def follows(batch: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> bool:
    """Whether its numbers lie in memory behind those of the batch before, as they were decoded together."""
    names = batch.keys() & {"id", "half", "vector"}
    ends = [before[name].data_ptr() + before[name].nbytes for name in names]
    return ends == [batch[name].data_ptr() for name in names]


def check(batch: dict[str, torch.Tensor], ids: range) -> None:
    wanted = torch.arange(ids.start, ids.stop)
    assert torch.equal(batch["id"], wanted)
    assert torch.equal(batch["half"], wanted / 2)
    assert torch.equal(batch["vector"], wanted.float()[:, None].expand(-1, LENGTH))


@pytest.mark.parametrize("batch_size", [1000, 1024, 2500])
def test_only_batches_of_two_row_groups_are_copied(folder: Path, batch_size: int) -> None:
    columns = ["id", "half", "vector"]
    loader, _ = tq.create_dataloader(path=folder, columns=columns, batch_size=batch_size)
    before, first, followed = None, 0, 0
    for number, batch in enumerate(loader):
        ids = range(number * batch_size, min((number + 1) * batch_size, sum(FILES)))
        check(batch, ids)
        if before is not None:
            crosses = any(first < border < ids.stop for border in borders())
            assert follows(batch, before) is not crosses, ids
            followed += not crosses
        before, first = batch, ids.start
    assert ids.stop == sum(FILES)
    assert followed > 3


def test_row_groups_are_decoded_up_to_where_a_batch_ends(tmp_path: Path) -> None:
    """At most 32,768 rows are decoded at a time: here they end with the last whole batch among them."""
    first, batch_size = 0, 4096
    for number, rows in enumerate((10_000, 140_000)):
        ids = np.arange(first, first + rows)
        table = pa.table({"id": ids, "half": ids / 2})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=rows)
        first += rows
    loader, _ = tq.create_dataloader(path=tmp_path, batch_size=batch_size)
    batches = list(loader)
    elsewhere = []
    for number, (before, batch) in enumerate(itertools.pairwise(batches), 1):
        ids = torch.arange(number * batch_size, min((number + 1) * batch_size, first))
        assert torch.equal(batch["id"], ids)
        assert torch.equal(batch["half"], ids / 2)
        if not follows(batch, before):
            elsewhere.append(number)
    # Batch 2 has the end of the first file and the beginning of the second. Of those after it the second has 2288 rows of batch 2
    # and then seven whole ones, and eight of them each time after that.
    assert elsewhere == [2, 3, 10, 18, 26, 34]


@pytest.mark.parametrize("batch_size", [1000, 8192])
def test_a_rank_that_goes_on_in_the_middle_cuts_there(folder: Path, batch_size: int) -> None:
    options = {"path": folder, "columns": ["id", "half", "vector"], "batch_size": batch_size}
    found = []
    for rank in range(3):
        loader, _ = tq.create_dataloader(**options, rank=rank, world_size=3)
        taken = list(itertools.islice(loader, 2))
        state = loader.state_dict()
        again, _ = tq.create_dataloader(**options, rank=rank, world_size=3)
        again.load_state_dict(state)
        for batch in [*taken, *again]:
            ids = batch["id"]
            assert torch.equal(batch["half"], ids / 2)
            assert torch.equal(batch["vector"], ids.float()[:, None].expand(-1, LENGTH))
            found += ids.tolist()
    assert sorted(found) == list(range(sum(FILES)))


def test_other_columns_beside_them_change_nothing(folder: Path) -> None:
    loader, _ = tq.create_dataloader(path=folder, batch_size=2500)
    for number, batch in enumerate(loader):
        ids = range(number * 2500, min((number + 1) * 2500, sum(FILES)))
        check(batch, ids)
        assert list(batch["text"]) == [str(number) for number in ids]
    assert ids.stop == sum(FILES)


def test_batches_longer_than_those_that_are_decoded(folder: Path) -> None:
    loader, _ = tq.create_dataloader(
        path=folder, columns=["id", "half", "vector"], batch_size=100_000
    )
    [batch] = loader
    check(batch, range(sum(FILES)))
