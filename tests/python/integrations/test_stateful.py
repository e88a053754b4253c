"""Promise 5 (docs/promises.md): torchdata's `StatefulDataLoader` around our dataset stops and resumes anywhere: the rows before and the
rows after are the epoch, batch for batch, whatever its workers had read ahead."""

import gc
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import support
import tensorquery as tq

# Not about the machine that runs the tests.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

ROWS, BATCH = 150, 8


@pytest.fixture
def query(tmp_path):
    folder = support.write_parquet(
        tmp_path / "t", pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 5}), files=3, row_group=17
    )  # fmt: skip
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.sql("SELECT id FROM t WHERE k <> 2")


def loader_of(query, workers, method=None, *, epoch=0, dataset=None, torchdata=None, **options):
    """A new StatefulDataLoader around a new dataset, as a process that resumes would make it."""
    options = {"batch_size": BATCH, "shuffle": True, "shuffle_buffer_size": 30, **options}
    if dataset is None:
        dataset = tq.QueryDataset(query, rank=0, world_size=1, **options)
        dataset.set_epoch(epoch)
    return StatefulDataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method,
        **(torchdata or {}),
    )


def take(loader, count):
    """`count` batches of ids, and the state right after them, through JSON."""
    iterator = iter(loader)
    batches = support.ids_of(itertools.islice(iterator, count))
    return batches, json.loads(json.dumps(loader.state_dict()))


def resumed(query, state, workers, method=None, **options):
    loader = loader_of(query, workers, method, **options)
    loader.load_state_dict(state)
    return loader


@pytest.fixture
def impatient(monkeypatch):
    """After an error torch's loader waits five seconds for each of its workers; so does a plain DataLoader."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_stop_anywhere(query, workers):
    whole = support.ids_of(loader_of(query, workers))
    assert sorted(support.flat(whole)) == sorted(query.to_arrow()["id"].to_pylist())
    steps = range(len(whole)) if workers == 0 else (0, 1, 2, 5, len(whole) - 1)
    for stop in steps:
        before, state = take(loader_of(query, workers), stop)
        assert before == whole[:stop]
        assert support.ids_of(resumed(query, state, workers)) == whole[stop:], stop


def test_the_other_start_methods(query):
    """The state is plain data: how workers start is not in it."""
    whole = support.ids_of(loader_of(query, 2))
    before, state = take(loader_of(query, 2, "spawn"), 3)
    assert before == whole[:3]
    for method in ("forkserver", "fork"):
        assert support.ids_of(resumed(query, state, 2, method)) == whole[3:], method


@pytest.mark.parametrize("workers", [0, 3])
def test_a_chain_of_stops(query, workers):
    whole = support.ids_of(loader_of(query, workers))
    found, state = take(loader_of(query, workers), 1)
    for count in (4, 0, 1, 3):
        batches, state = take(resumed(query, state, workers), count)
        found += batches
    assert found + support.ids_of(resumed(query, state, workers)) == whole


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_was_read_ahead_is_delivered_after_the_resume(query, workers):
    """Workers have sent batches that the loop never received: they are in no state."""
    ahead = {} if workers == 0 else {"prefetch_factor": 5}
    whole = support.ids_of(loader_of(query, workers))
    loader = loader_of(query, workers, torchdata=ahead)
    before, state = take(loader, 2)
    assert before + support.ids_of(resumed(query, state, workers)) == whole
    # The loop that went on got the same.
    assert before == whole[:2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_does_not_change_after_it_was_taken(query, workers):
    loader = loader_of(query, workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    text = json.dumps(state)
    list(iterator)
    assert json.dumps(state) == text


def test_snapshots_every_few_steps(query):
    whole = support.ids_of(loader_of(query, 2))
    for stop in (2, 4, 6):
        loader = loader_of(query, 2, torchdata={"snapshot_every_n_steps": 3})
        before, state = take(loader, stop)
        assert before + support.ids_of(resumed(query, state, 2)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_batch_is_the_whole_epoch(query, workers):
    state = loader_of(query, workers, epoch=2).state_dict()
    expected = support.ids_of(loader_of(query, workers, epoch=2))
    assert support.ids_of(resumed(query, state, workers)) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_the_end_starts_the_next_epoch(query, workers):
    loader = loader_of(query, workers)
    iterator = iter(loader)
    list(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    expected = support.ids_of(loader_of(query, workers, epoch=1))
    # With workers torchdata hands the state to them alone: the loop names its epoch, as for any loader.
    epoch = 0 if workers == 0 else 1
    assert support.ids_of(resumed(query, state, workers, epoch=epoch)) == expected


def test_in_process_the_last_batch_is_the_end_of_the_epoch(query):
    steps = len(support.ids_of(loader_of(query, 0)))
    before, state = take(loader_of(query, 0), steps)
    assert sorted(support.flat(before)) == sorted(query.to_arrow()["id"].to_pylist())
    loader = resumed(query, state, 0)
    assert support.ids_of(loader) == support.ids_of(loader_of(query, 0, epoch=1))
    assert support.ids_of(loader) == support.ids_of(loader_of(query, 0, epoch=2))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_that_have_delivered_all_end_at_once(query, workers):
    """No worker knows of the others' last batches, so the epoch goes on, with nothing in it."""
    steps = len(support.ids_of(loader_of(query, workers)))
    before, state = take(loader_of(query, workers), steps)
    assert sorted(support.flat(before)) == sorted(query.to_arrow()["id"].to_pylist())
    loader = resumed(query, state, workers)
    assert support.ids_of(loader) == []
    loader.dataset.set_epoch(1)
    assert support.ids_of(loader) == support.ids_of(loader_of(query, workers, epoch=1))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_go_on_after_a_resume(query, persistent):
    expected = [support.ids_of(loader_of(query, 2, epoch=epoch)) for epoch in range(3)]
    before, state = take(loader_of(query, 2), 3)
    loader = resumed(query, state, 2, torchdata={"persistent_workers": persistent})
    found = []
    for epoch in range(3):
        loader.dataset.set_epoch(epoch)
        found.append(support.ids_of(loader))
    assert [before + found[0], *found[1:]] == expected
    assert expected[0] != expected[1]


def test_a_later_epoch_is_resumed_whatever_the_dataset_says(query):
    """The iterator carries the state, epoch included."""
    for workers in (0, 2):
        whole = support.ids_of(loader_of(query, workers, epoch=5))
        before, state = take(loader_of(query, workers, epoch=5), 2)
        assert before + support.ids_of(resumed(query, state, workers, epoch=0)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_have_states_of_their_own(query, workers):
    found = []
    for rank in range(2):
        options = {"rank": rank, "world_size": 2}
        dataset = tq.QueryDataset(query, batch_size=BATCH, **options)
        # Equal steps need counts, and the workers of a loader that is not ours must not count.
        assert len(dataset) > 2
        before, state = take(loader_of(query, workers, dataset=dataset), 2)
        dataset = tq.QueryDataset(query, batch_size=BATCH, **options)
        assert len(dataset) > 2
        found += before + support.ids_of(resumed(query, state, workers, dataset=dataset))
    assert sorted(support.flat(found)) == sorted(query.to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_another_query_is_refused(query, workers, impatient):
    _, state = take(loader_of(query, workers), 2)
    other = query.session.sql("SELECT id FROM t WHERE k <> 3")
    with pytest.raises(tq.CheckpointMismatchError, match="what differs"):
        list(resumed(other, state, workers))


def test_another_number_of_workers_is_refused(query, impatient):
    _, state = take(loader_of(query, 2), 3)
    with pytest.raises(
        tq.CheckpointMismatchError, match=r"worker \d of 2, loaded in worker \d of 3"
    ):
        list(resumed(query, state, 3))
