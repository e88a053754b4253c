"""Accelerate takes our loader as it is: every row of an epoch once over all processes, before and after
``save_state`` and ``load_state``, and Accelerate's bookkeeping is done. Uses that would lose rows are refused."""

import gc
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

import ranks
import support
import tensorquery as tq

ROWS, BATCH = 130, 8


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 5, "x": np.arange(ROWS) / ROWS})
    return support.write_parquet(tmp_path / "t", table, files=3, row_group=19)


def wanted():
    return [row for row in range(ROWS) if row % 5 != 2]


def loader_of(folder, **options):
    session = tq.Session()
    session.register_parquet("t", folder)
    options = {"batch_size": BATCH, "shuffle": True, "shuffle_buffer_size": 32, **options}
    return tq.create_dataloader(
        "SELECT id, CAST(x AS FLOAT) AS x FROM t WHERE k <> 2", session=session, **options
    )


# ------------------------------------------------------------------------------------------------
# Real processes.


def step(accelerator, model, optimizer, batch):
    """One training step; True where the optimizer stepped."""
    with accelerator.accumulate(model):
        loss = model(batch["x"][:, None]).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.sync_gradients


def train(rank, world_size, folder, options):
    """Train an epoch from the checkpoint "load" on, saving one at step "save" to "to"."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True),
    )
    assert accelerator.num_processes == world_size
    # Prepared by create_dataloader, or by the program, or by both: all the same.
    given = {"accelerator": accelerator} if options.get("workers") else {}
    loader, dataset = loader_of(folder, num_workers=options.get("workers", 0), **given)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    prepared, model, optimizer = accelerator.prepare(loader, model, optimizer)
    assert prepared is loader
    assert accelerator._dataloaders == [loader]
    if options.get("load"):
        accelerator.load_state(options["load"])
    batches, updates = [], []
    for number, batch in enumerate(loader):
        batches.append(batch["id"].tolist())
        updates.append(step(accelerator, model, optimizer, batch))
        if number + 1 == options.get("save"):
            accelerator.save_state(options["to"])
    weight = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
    return {
        "batches": batches,
        "updates": updates,
        "steps": len(loader),
        "rank": dataset.rank,
        "same_weight": bool((weight == weight[0]).all()),
        "epoch": dataset.epoch,
    }


def everything(rank, world_size, folder, output):
    """Train, resume and be refused on two ranks, in one go, since starting them takes longest."""
    found = {}
    for workers in (0, 2):
        checkpoint = f"{output}/{workers}"
        options = {"workers": workers, "save": 2, "to": checkpoint}
        first = train(rank, world_size, folder, options)
        GradientState._reset_state()
        second = train(rank, world_size, folder, {"workers": workers, "load": checkpoint})
        GradientState._reset_state()
        found[workers] = (first, second)
    found["refused"] = refused(folder)
    found["gathered"] = {remainder: gathered(folder, remainder) for remainder in ("even", "drop")}
    return found


def gathered(folder, remainder):
    """The rows that `gather_for_metrics` gives of a query whose rows are no multiple of the ranks, as the documentation says."""
    accelerator = Accelerator(cpu=True)
    loader, _ = tq.create_dataloader(
        path=folder, format="parquet", filters="id < 101", batch_size=BATCH, remainder=remainder
    )
    found = []
    for batch in accelerator.prepare(loader):
        if remainder == "even":
            ids = batch["id"].tolist()
            found += accelerator.gather_for_metrics(ids, use_gather_object=True)
        else:
            found += accelerator.gather_for_metrics(batch["id"]).tolist()
    GradientState._reset_state()
    return sorted(found)


def refused(folder):
    """Refusals by the loaders that Accelerate builds around our dataset, and the cases that stay allowed."""
    found = {}
    for workers in (0, 1):
        for dispatch in (None, False):
            accelerator = Accelerator(
                cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch)
            )
            _, dataset = loader_of(folder)
            foreign = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=workers))
            try:
                list(foreign)
                found[f"{workers} {dispatch}"] = "no error"
            except tq.ConfigError as error:
                found[f"{workers} {dispatch}"] = str(error)
            GradientState._reset_state()
    _, dataset = loader_of(folder)
    found["rows"] = support.flat(support.ids_of(DataLoader(dataset, batch_size=None)))
    return found


@pytest.mark.slow
def test_two_and_four_processes(folder, tmp_path):
    answers = ranks.run(everything, 2, folder, str(tmp_path))
    for workers in (0, 2):
        first = [answer[workers][0] for answer in answers]
        assert_trained(first)
        for answer in answers:
            before, after = answer[workers]
            assert after["batches"] == before["batches"][2:]
            assert after["updates"] == before["updates"][2:]
            assert after["steps"] == before["steps"]
    # A foreign loader over several processes is refused; one that Accelerate does not touch holds its rank's
    # share.
    assert sorted(row for answer in answers for row in answer["refused"].pop("rows")) == wanted()
    for answer in answers:
        assert len(answer["refused"]) == 4
        for message in answer["refused"].values():
            assert "2 processes" in message
            assert "create_dataloader()" in message
        assert answer["gathered"]["even"] == list(range(101))
        assert len(answer["gathered"]["drop"]) == len({*answer["gathered"]["drop"]}) == 96
    # More processes than wrote the checkpoint.
    first = [answer[0][0] for answer in answers]
    second = ranks.run(train, 4, folder, {"load": str(tmp_path / "0")})
    rows = [row for found in first for batch in found["batches"][:2] for row in batch]
    rows += [row for found in second for batch in found["batches"] for row in batch]
    assert sorted(rows) == wanted()
    assert len({len(found["batches"]) for found in second}) == 1


def assert_trained(ranks_found):
    """Each row once, in equal steps, with gradients accumulated over two of them."""
    assert [found["rank"] for found in ranks_found] == list(range(len(ranks_found)))
    assert (
        sorted(support.flat(row for found in ranks_found for row in found["batches"])) == wanted()
    )
    assert len({len(found["batches"]) for found in ranks_found}) == 1
    for found in ranks_found:
        steps = found["steps"]
        assert steps == len(found["batches"])
        # Every second step, and the last one of the epoch.
        assert found["updates"] == [
            number % 2 == 0 or number == steps for number in range(1, steps + 1)
        ]
        assert found["same_weight"]
        assert found["epoch"] == 1


# ------------------------------------------------------------------------------------------------
# The bookkeeping, in this process.


@pytest.fixture
def accelerator():
    """An Accelerator of this process alone, and none of it left behind."""
    yield Accelerator(cpu=True, gradient_accumulation_steps=3)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def here(folder, **options):
    return loader_of(folder, rank=0, world_size=1, **options)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_active_loader_and_its_end(folder, accelerator, workers):
    loader = accelerator.prepare(here(folder, num_workers=workers)[0])
    state = accelerator.gradient_state
    for _ in range(2):
        ends = []
        for _ in loader:
            assert state.active_dataloader is loader
            assert state.remainder == 0
            ends.append(state.end_of_dataloader)
        assert ends == [False] * (len(ends) - 1) + [True]
        assert not state.in_dataloader


@pytest.mark.slow
def test_after_a_break_no_loader_is_active(folder, accelerator):
    loader = accelerator.prepare(here(folder)[0])
    for _ in loader:
        break
    gc.collect()
    assert not accelerator.gradient_state.in_dataloader
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    del older
    gc.collect()
    assert accelerator.gradient_state.active_dataloader is loader
    assert len(accelerator.gradient_state.dataloader_references) == 2  # None is the first
    del newer


def test_a_loader_inside_a_loader(folder, accelerator):
    outer, inner = (accelerator.prepare(here(folder)[0]) for _ in range(2))
    state = accelerator.gradient_state
    for _ in outer:
        for _ in inner:
            assert state.active_dataloader is inner
        assert state.end_of_dataloader is outer.end_of_dataloader
        assert state.active_dataloader is outer


def test_a_loader_that_was_not_prepared_is_left_alone(folder, accelerator):
    for _ in here(folder)[0]:
        assert not accelerator.gradient_state.in_dataloader


def test_batches_move_to_the_device(folder, accelerator):
    PartialState().device = torch.device("meta")
    loader = accelerator.prepare(here(folder)[0])
    assert {str(batch["x"].device) for batch in loader} == {"meta"}
    loader, _ = here(folder)
    assert {str(batch["x"].device) for batch in loader} == {"cpu"}
    loader = accelerator.prepare_data_loader(here(folder)[0])
    assert {str(batch["x"].device) for batch in loader} == {"meta"}


def test_a_loader_is_prepared_once(folder, accelerator):
    loader, _ = here(folder)
    assert accelerator.prepare(loader) is loader
    assert accelerator.prepare_data_loader(loader) is loader
    assert accelerator._dataloaders == [loader]
    assert loader.total_batch_size == BATCH


def test_a_loader_made_with_the_accelerator_is_prepared(folder, accelerator):
    loader, dataset = loader_of(folder, accelerator=accelerator)
    assert accelerator._dataloaders == [loader]
    assert (dataset.rank, dataset.world_size) == (0, 1)
    for _ in loader:
        assert accelerator.gradient_state.active_dataloader is loader
    # A rank given as an argument is kept.
    _, dataset = loader_of(folder, accelerator=accelerator, rank=1, world_size=2)
    assert (dataset.rank, dataset.world_size) == (1, 2)


def test_what_is_no_accelerator_is_refused(folder, accelerator):
    with pytest.raises(tq.ConfigError, match="accelerator='cpu' is a str; expected an accelerate"):
        loader_of(folder, accelerator="cpu")


class Mesh(dict):
    """A mesh's dimensions with their sizes, as `torch_device_mesh` shows them."""

    mesh_dim_names = property(tuple)


class Dimension(int):
    def size(self):
        return int(self)


@pytest.mark.parametrize("shared", ["tp", "cp"])
def test_processes_that_need_the_same_rows_are_not_ranks(folder, accelerator, monkeypatch, shared):
    mesh = Mesh({"dp_shard": Dimension(2), shared: Dimension(2)})
    monkeypatch.setattr(Accelerator, "torch_device_mesh", mesh)
    with pytest.raises(tq.ConfigError, match=rf"need the same rows \({shared}\)"):
        loader_of(folder, accelerator=accelerator)
    loader_of(folder, accelerator=accelerator, rank=0, world_size=1)
    mesh[shared] = Dimension(1)
    loader_of(folder, accelerator=accelerator)


@pytest.mark.slow
def test_the_state_is_saved_and_loaded(folder, accelerator, tmp_path):
    loader = accelerator.prepare(here(folder)[0])
    whole = support.ids_of(here(folder)[0])
    iterator = iter(loader)
    before = support.ids_of(next(iterator) for _ in range(3))
    accelerator.save_state(str(tmp_path / "c"))
    del iterator
    accelerator.free_memory()
    loader = accelerator.prepare(here(folder)[0])
    accelerator.load_state(str(tmp_path / "c"))
    assert before + support.ids_of(loader) == whole


def test_metrics_lose_no_rows(folder, accelerator):
    loader = accelerator.prepare(here(folder)[0])
    found = [
        row for batch in loader for row in accelerator.gather_for_metrics(batch["id"]).tolist()
    ]
    assert sorted(found) == wanted()


def test_skipping_by_reading_is_refused(folder, accelerator):
    loader = accelerator.prepare(here(folder)[0])
    with pytest.raises(tq.ConfigError, match="load_state"):
        list(accelerator.skip_first_batches(loader, 2))


def test_a_foreign_loader_of_one_process_is_fine(folder, accelerator):
    _, dataset = here(folder)
    foreign = accelerator.prepare(DataLoader(dataset, batch_size=None))
    assert sorted(support.flat(support.ids_of(foreign))) == wanted()


@pytest.mark.slow
def test_nothing_imports_accelerate(folder):
    code = (
        "import sys, tensorquery as tq\n"
        f"loader, _ = tq.create_dataloader(path={folder!r}, format='parquet')\n"
        "assert sum(len(batch['id']) for batch in loader) == " + str(ROWS) + "\n"
        "loader.state_dict()\n"
        "assert not {'accelerate', 'transformers', 'torchdata'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
