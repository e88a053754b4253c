"""Promise 2 (docs/promises.md): in real process groups, every rank has a batch for every step of
DistributedDataParallel. A run never hangs, whichever files and filters a rank has, before a resume and after it."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist

import ranks
import support
import tensorquery as tq

pytestmark = pytest.mark.slow

ROWS = 403


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five files whose share of rows that the filter keeps differs: all of one file, none of another."""
    k = np.concatenate([np.zeros(80), np.ones(80), np.arange(ROWS - 160) % 3]).astype(int)
    table = pa.table({"id": np.arange(ROWS), "k": k, "x": np.arange(ROWS) / ROWS})
    return support.write_parquet(tmp_path_factory.mktemp("ddp") / "t", table, files=5, row_group=17)


def wanted():
    return [*range(80), *(row for row in range(160, ROWS) if (row - 160) % 3 != 1)]


def train(rank, world_size, folder, options):
    """Take a DDP step per batch, up to step "stop"; go on from "state"."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    try:
        session = tq.Session()
        session.register_parquet("t", folder)
        loader, dataset = tq.create_dataloader(
            "SELECT id, CAST(x AS FLOAT) AS x FROM t WHERE k <> 1",
            session=session,
            batch_size=options.get("batch_size", 8),
            num_workers=options.get("workers", 0),
            remainder=options.get("remainder", "even"),
            shuffle=True,
            shuffle_buffer_size=40,
        )
        assert (dataset.rank, dataset.world_size) == (rank, world_size)
        # One rank asks alone, before the others have counted: no collective is behind it.
        length = len(loader) if rank == 0 else None
        if options.get("state"):
            loader.load_state_dict(options["state"])
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches, state = [], None
        for batch in loader:
            loss = model(batch["x"][:, None]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches.append(batch["id"].tolist())
            state = json.dumps(loader.state_dict())
            if len(batches) == options.get("stop"):
                break
        weights = [torch.zeros(1, 1) for _ in range(world_size)]
        dist.all_gather(weights, model.module.weight.detach())
        return {
            "batches": batches,
            "state": json.loads(state),
            "length": length,
            "same": all(bool((weight == weights[0]).all()) for weight in weights),
        }
    finally:
        dist.destroy_process_group()


def rows_of(found):
    return [row for rank in found for batch in rank["batches"] for row in batch]


@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (2, {}),
        (2, {"workers": 2}),
        (4, {}),
        (4, {"workers": 1}),
        (2, {"batch_size": 1, "remainder": "pad"}),
        (4, {"batch_size": 16, "remainder": "drop"}),
    ],
)
def test_a_step_per_batch_to_the_end(folder, world_size, options):
    found = ranks.run(train, world_size, folder, options)
    steps = {len(rank["batches"]) for rank in found}
    assert len(steps) == 1
    assert found[0]["length"] == steps.pop()
    assert all(rank["same"] for rank in found)
    assert all(rank["state"] == found[0]["state"] for rank in found)
    assert found[0]["state"]["epoch"] == 1
    rows, batch_size = rows_of(found), options.get("batch_size", 8)
    match options.get("remainder", "even"):
        case "even":
            assert sorted(rows) == wanted()
        case "pad":
            assert set(rows) == set(wanted())
            assert len(rows) - len(wanted()) < world_size * batch_size
        case "drop":
            assert len(rows) == len(set(rows))
            assert set(rows) <= set(wanted())
            assert len(wanted()) - len(rows) < world_size * batch_size


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_on_half_the_ranks(folder, workers):
    """Four ranks stop in the middle, two go on with the state of any of them."""
    first = ranks.run(train, 4, folder, {"stop": 3, "workers": workers})
    assert {len(rank["batches"]) for rank in first} == {3}
    state = first[2]["state"]
    assert all(rank["state"] == state for rank in first)
    second = ranks.run(train, 2, folder, {"state": state, "workers": 2 - workers})
    assert len({len(rank["batches"]) for rank in second}) == 1
    assert all(rank["same"] for rank in second)
    assert sorted(rows_of(first) + rows_of(second)) == wanted()


def test_resumed_on_the_same_ranks(folder):
    """The second half is bit by bit what the run would have delivered."""
    whole = ranks.run(train, 2, folder, {})
    first = ranks.run(train, 2, folder, {"stop": 5})
    second = ranks.run(train, 2, folder, {"state": first[0]["state"]})
    for all_of, before, after in zip(whole, first, second, strict=True):
        assert before["batches"] + after["batches"] == all_of["batches"]
    assert second[0]["length"] == whole[0]["length"]


def made_before(rank, world_size, folder):
    """Read, under a process group, with loaders made while nothing told of other ranks."""
    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    early, dataset = tq.create_dataloader(path=folder, format="parquet")
    working, _ = tq.create_dataloader(path=folder, format="parquet", num_workers=1)
    all_of_it, _ = tq.create_dataloader(path=folder, format="parquet", rank=0, world_size=1)
    before = len(support.flat(support.ids_of(early)))
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    found = []
    for loader in (early, working, dataset):
        try:
            found.append(len(list(loader)))
        except tq.ConfigError as error:
            found.append(str(error))
    return before, found, len(support.flat(support.ids_of(all_of_it)))


def test_a_loader_made_before_the_process_group_says_so(folder):
    for before, found, everything in ranks.run(made_before, 2, folder):
        assert before == everything == ROWS
        for message in found:
            assert "torch.distributed has 2 ranks, but the loader was made before" in message
