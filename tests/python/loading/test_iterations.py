"""Promise 5 (docs/promises.md): calls between and during iterations: `set_epoch`, a loaded state, `refresh` and a newer iterator.

A state says what was received, whatever was set meanwhile. An iterator that is over says so.
"""

import itertools

import pytest
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq
from iceberg_lakes import lake_of, sample
from iceberg_servers import fresh
from stopping import SHUFFLES, ids, loader_of, query_of, resumed, state_of, take
from tensorquery.loading.workers.batch_runs import BatchRuns

# Not about the machine that runs the tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

PERSISTENT = {"num_workers": 2, "persistent_workers": True}
WORKERS = {"none": {}, "two": {"num_workers": 2}, "persistent": PERSISTENT}


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    return query_of(stopping.write_table(tmp_path_factory.mktemp("iterations") / "t"), "k <> 2")


@pytest.fixture(params=WORKERS)
def options(request):
    return {**WORKERS[request.param], **SHUFFLES["on"]}


def whole_of(query, epoch, **options):
    """The batches of an epoch that nobody stops."""
    loader = loader_of(query, **options)
    loader.set_epoch(epoch)
    return ids(loader)


def place(loader):
    """Epoch and step of the loader's state."""
    state = loader.state_dict()
    return state["epoch"], state["step"]


# ------------------------------------------------------------------------------------------------
# The epoch that is set.


@pytest.mark.slow
def test_an_epoch_set_while_one_runs_leaves_its_state_alone(query, options):
    whole = whole_of(query, 0, **options)
    loader = loader_of(query, **options)
    iterator = iter(loader)
    received = ids(itertools.islice(iterator, 3))
    loader.set_epoch(1)
    assert place(loader) == (0, 3)
    received += ids(itertools.islice(iterator, 1))
    assert place(loader) == (0, 4)
    assert received + ids(resumed(query, state_of(loader), **options)) == whole
    # Left by a break, which is where a program that was told to end saves.
    iterator.close()
    assert place(loader) == (0, 4)
    assert ids(loader) == whole_of(query, 1, **options)


@pytest.mark.slow
def test_an_epoch_set_after_a_state_was_loaded_leaves_the_state_alone(query, options):
    loader = loader_of(query, **options)
    loader.set_epoch(3)
    before, state = take(loader, 3)
    loader = resumed(query, state, **options)
    loader.set_epoch(0)
    assert loader.state_dict() == state
    iterator = iter(loader)
    before += ids(itertools.islice(iterator, 2))
    assert place(loader) == (3, 5)
    iterator.close()
    assert place(loader) == (3, 5)
    rest = ids(resumed(query, state_of(loader), **options))
    assert before + rest == whole_of(query, 3, **options)


@pytest.mark.slow
def test_an_epoch_set_after_a_break_is_the_one_that_is_saved(query, options):
    loader = loader_of(query, **options)
    for _ in itertools.islice(loader, 3):
        pass
    assert place(loader) == (0, 3)
    loader.set_epoch(0)
    assert place(loader) == (0, 3)
    loader.set_epoch(2)
    assert place(loader) == (2, 0)
    assert ids(loader) == whole_of(query, 2, **options)


@pytest.mark.slow
def test_an_epoch_set_before_the_last_batch_comes_next(query, options):
    steps = len(whole_of(query, 0, **options))
    loader = loader_of(query, **options)
    iterator = iter(loader)
    ids(itertools.islice(iterator, steps - 1))
    loader.set_epoch(7)
    next(iterator)
    assert place(loader) == (7, 0)
    assert next(iterator, None) is None
    assert place(loader) == (7, 0)
    assert loader.dataset.epoch == 7
    state = state_of(loader)
    assert ids(loader) == ids(resumed(query, state, **options)) == whole_of(query, 7, **options)


@pytest.mark.slow
def test_the_same_epoch_set_at_its_end_comes_once_more(query, options):
    whole = whole_of(query, 0, **options)
    loader = loader_of(query, **options)
    iterator = iter(loader)
    ids(itertools.islice(iterator, len(whole)))
    loader.set_epoch(0)
    assert next(iterator, None) is None
    assert place(loader) == (0, 0)
    assert ids(loader) == whole


@pytest.mark.slow
def test_a_loop_that_sets_every_epoch_goes_on_after_a_resume(query, options):
    epochs = [whole_of(query, epoch, **options) for epoch in range(4)]
    loader = loader_of(query, **options)
    loader.set_epoch(1)
    found, state = take(loader, 2)
    loader = resumed(query, state, **options)
    for epoch in range(1, 4):
        loader.set_epoch(epoch)
        found += ids(loader)
    assert found == [batch for batches in epochs[1:] for batch in batches]


@pytest.mark.slow
def test_ranks_at_two_sides_of_an_epochs_end_are_merged(query):
    """One has received its last batch and goes on with the epoch that was set; the other is still in the one before."""
    options = {"world_size": 2, "remainder": "uneven"}
    for first, then in ((0, 7), (3, 0)):
        loaders = [loader_of(query, rank=rank, **options) for rank in range(2)]
        received = []
        for loader, count in zip(loaders, (None, 2), strict=True):
            loader.set_epoch(first)
            iterator = iter(loader)
            received += ids(itertools.islice(iterator, count))
            loader.set_epoch(then)
        states = [state_of(loader) for loader in loaders]
        assert [state["epoch"] for state in states] == [then, first]
        for order in (states, states[::-1]):
            merged = tq.merge_state_dicts(order)
            assert merged["epoch"] == first
            rest = [
                batch
                for rank in range(2)
                for batch in ids(resumed(query, merged, rank=rank, **options))
            ]
            rows = sorted(row for batch in received + rest for row in batch)
            assert rows == sorted(query.to_arrow()["id"].to_pylist())


# ------------------------------------------------------------------------------------------------
# Workers that live on.


@pytest.mark.slow
def test_workers_that_live_on_go_on_from_a_state_that_the_dataset_loads(query):
    options = {**PERSISTENT, **SHUFFLES["on"]}
    whole = whole_of(query, 0, **options)
    _, state = take(loader_of(query, **options), 4)
    loader = loader_of(query, **options)
    assert ids(loader) == whole
    loader.dataset.load_state_dict(state)
    assert ids(loader) == whole[4:]
    # Those that started then live on.
    assert ids(loader) == whole_of(query, 1, **options)


@pytest.fixture
def lake(request):
    lake = lake_of("sqlite", request)
    name = f"{fresh()}.t"
    lake.make(name, sample(60), files=3)
    return lake.table(name), lake.properties, name


def lake_loader(lake, **options):
    _, properties, name = lake
    session = tq.Session()
    session.register_iceberg("lake", properties)
    query = session.sql(f"SELECT id FROM lake.{name}")
    return loader_of(query, split_rows=None, **options)


@pytest.mark.slow
def test_workers_that_live_on_read_what_a_refresh_pins(lake):
    loader = lake_loader(lake, **PERSISTENT)
    assert sorted(support.flat(ids(loader))) == list(range(60))
    lake[0].append(sample(20, start=60))
    assert len(loader.dataset.refresh()) == 1
    assert sorted(support.flat(ids(loader))) == list(range(80))


@pytest.mark.slow
def test_workers_of_another_loader_that_live_on_say_what_they_do_not_know(query):
    dataset = tq.QueryDataset(query, rank=0, world_size=1, batch_size=7)
    loader = DataLoader(dataset, batch_size=None, **PERSISTENT)
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert len(support.flat(support.ids_of(loader))) == query.count()
    assert len(support.flat(support.ids_of(loader))) == query.count()
    dataset.load_state_dict(state)
    with pytest.raises(tq.ConfigError, match="make a new DataLoader"):
        next(iter(loader))


@pytest.mark.slow
def test_a_refresh_that_failed_is_made_up_for(lake, monkeypatch):
    """The store may fail while the new snapshot is planned; the next call must plan it again."""
    loader = lake_loader(lake)
    lake[0].append(sample(20, start=60))

    def fail(*_, **__):
        raise tq.StorageError("the store does not answer")

    with monkeypatch.context() as patch, pytest.raises(tq.StorageError, match="not answer"):
        patch.setattr("tensorquery.loading.plan.find_plan", fail)
        loader.dataset.refresh()
    assert sorted(support.flat(ids(loader))) == list(range(60))
    assert len(loader.dataset.refresh()) == 1
    assert sorted(support.flat(ids(loader))) == list(range(80))


@pytest.mark.slow
def test_a_refresh_while_somebody_iterates_is_refused(lake):
    """Also before the first batch: that iterator would deliver one snapshot and count by another."""
    for options in ({}, {"num_workers": 2}):
        loader = lake_loader(lake, **options)
        iterator = iter(loader)
        lake[0].append(sample(1, start=99))
        with pytest.raises(tq.ConfigError, match="between two epochs"):
            loader.dataset.refresh()
        assert 99 not in support.flat(ids(iterator))
        assert len(loader.dataset.refresh()) == 1
        assert place(loader) == (1, 0)
        lake[0].delete("id = 99")


@pytest.mark.slow
def test_batches_that_workers_keep_to_themselves_are_an_error(tmp_path, monkeypatch):
    query = query_of(stopping.write_table(tmp_path / "t"))

    def two_runs(self, real=BatchRuns.__next__):
        if self._sent == 2:
            raise StopIteration
        return real(self)

    loader = loader_of(query, num_workers=2, multiprocessing_context="fork")
    monkeypatch.setattr(BatchRuns, "__next__", two_runs)
    received = []
    with pytest.raises(tq.DataError, match="worker 0 ended before its last batch"):
        for batch in loader:
            received.append(batch["id"])
    monkeypatch.undo()
    assert place(loader) == (0, 4)
    assert received + ids(resumed(query, state_of(loader), num_workers=2)) == whole_of(
        query, 0, num_workers=2
    )


def ends(batch):
    raise StopIteration


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *(
            {"num_workers": workers, where: ends}
            for workers in (0, 2)
            for where in ("transform", "collate_fn")
        ),
        {"transform": ends, "transform_threads": 2},
        {"transform": dict, "transform_threads": 2, "collate_fn": ends},
    ],
)
def test_a_function_that_raises_stop_iteration_does_not_end_the_epoch(query, options):
    loader = loader_of(query, remainder="uneven", **options)
    with pytest.raises(RuntimeError, match="transform or collate_fn raised StopIteration"):
        list(loader)
    assert place(loader) == (0, 0)


# ------------------------------------------------------------------------------------------------
# An older iterator.


@pytest.mark.slow
@pytest.mark.parametrize("begun", [0, 3])
def test_an_older_iterator_that_had_not_begun_says_that_it_is_closed(query, options, begun):
    whole = whole_of(query, 0, **options)
    loader = loader_of(query, **options)
    older, newer = iter(loader), iter(loader)
    received = ids(itertools.islice(newer, begun))
    with pytest.raises(tq.ConfigError, match="closed, because a newer one was started"):
        next(older)
    assert list(older) == []
    assert place(loader) == (0, begun)
    assert received + ids(newer) == whole


@pytest.mark.slow
def test_an_iterator_that_had_not_begun_is_closed_by_a_state(query, options):
    whole = whole_of(query, 0, **options)
    _, state = take(loader_of(query, **options), 3)
    loader = loader_of(query, **options)
    iterator = iter(loader)
    loader.load_state_dict(state)
    with pytest.raises(tq.ConfigError, match="closed, because a state was loaded"):
        next(iterator)
    assert loader.state_dict() == state
    assert ids(loader) == whole[3:]


# ------------------------------------------------------------------------------------------------
# A state that is refused.


@pytest.mark.slow
@pytest.mark.parametrize("through", ["loader", "dataset"])
def test_a_refused_state_leaves_the_snapshot_as_it_was(lake, through):
    _, state = take(lake_loader(lake, shuffle_seed=1), 1)
    lake[0].append(sample(20, start=60))
    loader = lake_loader(lake, shuffle_seed=2, **PERSISTENT)
    received, before = take(loader, 2)
    load = {"loader": loader, "dataset": loader.dataset}[through].load_state_dict
    with pytest.raises(tq.CheckpointMismatchError, match="the seed"):
        load(state)
    assert loader.state_dict() == before
    assert loader.dataset.num_rows == 80
    rest = resumed_lake(lake, before)
    assert sorted(support.flat(received + rest)) == list(range(80))
    assert sorted(support.flat(ids(loader))) == list(range(80))


def resumed_lake(lake, state):
    loader = lake_loader(lake, shuffle_seed=2, **PERSISTENT)
    loader.load_state_dict(state)
    return ids(loader)


@pytest.mark.slow
def test_a_refused_state_does_not_end_an_epoch_under_way(lake):
    _, state = take(lake_loader(lake, shuffle_seed=1), 1)
    lake[0].append(sample(20, start=60))
    loader = lake_loader(lake, shuffle_seed=2)
    iterator = iter(loader)
    received = ids(itertools.islice(iterator, 3))
    with pytest.raises(tq.CheckpointMismatchError):
        loader.load_state_dict(state)
    received += ids(itertools.islice(iterator, 1))
    assert place(loader) == (0, 4)
    after = state_of(loader)
    assert sorted(support.flat(received + ids(iterator))) == list(range(80))
    assert sorted(support.flat(received + resumed_lake(lake, after))) == list(range(80))


def test_a_refused_state_leaves_the_moment_as_it_was(tmp_path):
    folder = stopping.write_table(tmp_path / "t")
    session = tq.Session()
    session.register_parquet("t", folder)

    def make(seed):
        query = session.sql("SELECT id, CAST(now() AS BIGINT) AS at FROM t")
        return loader_of(query, shuffle_seed=seed)

    _, state = take(make(1), 1)
    loader = make(2)
    before = loader.dataset.state_dict()
    with pytest.raises(tq.CheckpointMismatchError, match="the seed"):
        loader.load_state_dict(state)
    assert loader.dataset.state_dict() == before
    now = next(iter(loader))["at"][0]
    assert now != next(iter(make(3)))["at"][0]
    assert now == next(iter(loader))["at"][0]
