"""Promise 4 (docs/promises.md): the order is a function of (fingerprint, seed, epoch, topology): never of thread timing, of the
number of threads, or of the process. Epochs advance when they end, and only then."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq

ROWS, GROUP = 6000, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    table = pa.table({"id": np.arange(ROWS), "s": [f"row {i}" for i in range(ROWS)]})
    path = tmp_path_factory.mktemp("ordered")
    return support.write_parquet(path, table, files=6, row_group=GROUP)


@pytest.fixture(scope="module")
def query(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.sql("SELECT id, s FROM t WHERE id % 10 < 9")


def make(query, **options):
    options = {"batch_size": 64, "shuffle": True, **options}
    return tq.create_dataloader(query, **options)


def order(loader):
    """The ids of one epoch, a list per batch."""
    return support.ids_of(loader)


MODES = {
    "default": {"shuffle_buffer_size": None},
    "splits": {"shuffle_buffer_size": 1},
    "rows": {"shuffle_buffer_size": 700},
    "rows_only": {"shuffle": False, "shuffle_buffer_size": 700},
    "rank": {"shuffle_buffer_size": 300, "rank": 1, "world_size": 3},
}


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_threads(query, monkeypatch, mode):
    orders = []
    for threads in (1, 2, 7, 1):
        for module in ("shard_source", "plan"):
            monkeypatch.setattr(
                f"tensorquery.loading.{module}.threads_for", lambda *_, n=threads: n
            )
        orders.append(order(make(query, **MODES[mode])[0]))
    assert orders[0] == orders[1] == orders[2] == orders[3]
    assert len(orders[0]) > 5


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_seed_and_epoch_choose_the_order(query, mode):
    def epochs(seed):
        loader, dataset = make(query, shuffle_seed=seed, **MODES[mode])
        found = []
        for epoch in range(3):
            assert dataset.epoch == epoch
            found.append(order(loader))
        return found

    first, again, other = epochs(1), epochs(1), epochs(2)
    assert first == again
    everything = [*first, *other]
    assert all(a != b for i, a in enumerate(everything) for b in everything[:i])
    if mode != "rank":
        assert len({tuple(sorted(support.flat(epoch))) for epoch in everything}) == 1


def test_another_rank_has_another_order(query):
    """Even equal rows on two ranks are shuffled differently: the shard is part of the key."""
    strategies = [OneRank(rank) for rank in range(2)]
    orders = [
        order(make(query, rank=rank, world_size=2, split_strategy=strategies[rank])[0])
        for rank in range(2)
    ]
    assert sorted(support.flat(orders[0])) == sorted(support.flat(orders[1]))
    assert orders[0] != orders[1]


class OneRank:
    """Gives every split to one rank."""

    def __init__(self, rank):
        self.rank = rank

    def generate(self, splits, num_shards, epoch):
        return [list(splits) if shard == self.rank else [] for shard in range(num_shards)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_fresh_process_delivers_the_same_order(folder, query, workers):
    program = """
import json, sys
import tensorquery as tq
folder, workers = sys.argv[1], int(sys.argv[2])
session = tq.Session()
session.register_table("unused", tq.Session().sql("SELECT 1 AS one"))
session.register_parquet("t", folder)
loader, dataset = tq.create_dataloader(
    "SELECT id, s FROM t WHERE id % 10 < 9", session=session, batch_size=64, shuffle=True,
    shuffle_buffer_size=700, num_workers=workers,
)
dataset.set_epoch(3)
print(json.dumps([batch["id"].tolist() for batch in loader]))
"""
    loader, dataset = make(query, shuffle_buffer_size=700, num_workers=workers)
    dataset.set_epoch(3)
    here = order(loader)
    run = [sys.executable, "-c", program, folder, str(workers)]
    there = subprocess.run(run, check=True, capture_output=True, text=True, timeout=240).stdout
    assert json.loads(there) == here


def test_without_shuffling_one_rank_delivers_the_files_own_order(query):
    loader, _ = make(query, shuffle=False)
    for _ in range(2):
        assert support.flat(order(loader)) == [i for i in range(ROWS) if i % 10 < 9]


def test_a_list_of_files_is_read_as_given(folder):
    names = [f"{folder}/{number:03}.parquet" for number in (4, 0, 2)]
    loader, _ = tq.create_dataloader(path=names, batch_size=500)
    starts = [number * ROWS // 6 for number in (4, 0, 2)]
    assert support.flat(order(loader)) == [start + i for start in starts for i in range(ROWS // 6)]


def test_without_shuffling_every_shard_keeps_the_files_order(query):
    for shard in support.read_shards(query, 3, 2, batch_size=50):
        ids = support.flat(support.ids_of(shard))
        assert ids == sorted(ids) != []


def test_shuffling_permutes_splits_and_keeps_rows_in_order(query):
    """A window of one row leaves the permutation of splits alone."""
    loader, _ = make(query, split_rows=GROUP, shuffle_buffer_size=1)
    ids = support.flat(order(loader))
    groups = [i // GROUP for i in ids]
    visited = list(dict.fromkeys(groups))
    assert len(visited) == ROWS // GROUP
    assert visited != sorted(visited)
    assert groups == support.flat([[group] * 90 for group in visited])
    assert all(a < b for a, b in itertools.pairwise(ids) if a // GROUP == b // GROUP)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_row_buffer_mixes_rows_inside_a_batch(query, shuffle):
    def splits_per_batch(buffer):
        batches = order(
            make(query, shuffle=shuffle, shuffle_buffer_size=buffer, split_rows=GROUP)[0]
        )
        return np.mean([len({i // GROUP for i in ids}) for ids in batches])

    assert splits_per_batch(1) <= 2
    # 64 rows of a window of 10 or 60 splits come from nearly all of the 10, and from about 40 of the 60.
    assert splits_per_batch(900) > 8
    assert splits_per_batch(ROWS) > 30


def test_a_window_mixes_no_further_than_itself(query):
    """A buffer of 900 rows moves no row beyond its own 900."""
    ids = support.flat(order(make(query, shuffle=False, shuffle_buffer_size=900)[0]))
    source = [i for i in range(ROWS) if i % 10 < 9]
    for start in range(0, len(ids), 900):
        window = ids[start : start + 900]
        assert sorted(window) == source[start : start + 900]
        assert window != sorted(window)


@pytest.mark.slow
def test_set_epoch_chooses_and_an_ended_epoch_advances(query):
    loader, dataset = make(query, shuffle_buffer_size=100)
    zero, one = order(loader), order(loader)
    assert dataset.epoch == 2
    dataset.set_epoch(0)
    assert order(loader) == zero
    assert order(loader) == one
    dataset.set_epoch(7)
    seven = order(loader)
    assert seven not in (zero, one)
    dataset.set_epoch(7)
    assert order(loader) == seven
    assert dataset.epoch == 8


def test_the_dataset_alone_has_the_same_epochs(query):
    loader, dataset = make(query, shuffle_buffer_size=100)
    zero, one = order(loader), order(loader)
    dataset.set_epoch(0)
    assert order(dataset) == zero
    assert order(dataset) == one


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_break_the_same_epoch_starts_anew(query, workers):
    loader, dataset = make(query, num_workers=workers)
    dataset.set_epoch(5)
    first = []
    for batch in loader:
        first.append(batch["id"].tolist())
        if len(first) == 3:
            break
    assert dataset.epoch == 5
    whole = order(loader)
    assert whole[:3] == first
    assert dataset.epoch == 6


@pytest.mark.slow
def test_persistent_workers_follow_the_epoch(query):
    options = {"num_workers": 2, "shuffle_buffer_size": 200}
    loader, dataset = make(query, persistent_workers=True, **options)
    zero, one = order(loader), order(loader)
    assert dataset.epoch == 2
    dataset.set_epoch(9)
    nine = order(loader)
    dataset.set_epoch(0)
    assert order(loader) == zero
    assert len({str(zero), str(one), str(nine)}) == 3
    # Workers that live on deliver what fresh ones do.
    fresh, dataset = make(query, **options)
    assert order(fresh) == zero
    dataset.set_epoch(9)
    assert order(fresh) == nine


@pytest.mark.slow
def test_persistent_workers_start_anew_after_a_break(query):
    loader, dataset = make(query, num_workers=2, persistent_workers=True)
    for batch in loader:
        first = batch["id"].tolist()
        break
    assert dataset.epoch == 0
    assert order(loader)[0] == first
    assert dataset.epoch == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_is_fixed_when_iteration_starts(query, workers):
    """set_epoch inside the loop is for the next epoch, even for a worker that has not started yet."""
    late = {"worker_init_fn": support.second_starts_late} if workers else {}
    loader, dataset = make(query, num_workers=workers, **late)
    whole = order(loader)
    dataset.set_epoch(0)
    iterator = iter(loader)
    dataset.set_epoch(3)
    found = [next(iterator)["id"].tolist()]
    dataset.set_epoch(4)
    found += order(iterator)
    assert found == whole
    assert dataset.epoch == 4


@pytest.mark.slow
def test_workers_divide_a_rank_the_same_way_every_time(query):
    runs = [order(make(query, num_workers=2, rank=1, world_size=2)[0]) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_a_custom_strategy_is_asked_every_epoch(query):
    loader, _ = make(query, split_strategy=support.LastFirst(), rank=0, world_size=2, shuffle=False)
    zero, one = order(loader), order(loader)
    assert not set(support.flat(zero)) & set(support.flat(one))
    workers, _ = make(
        query, split_strategy=support.LastFirst(), rank=0, world_size=2, num_workers=2
    )
    assert sorted(support.flat(order(workers))) != []
    assert support.flat(zero)[0] > support.flat(zero)[-1]


def test_the_fingerprint_names_query_files_and_splits(query, folder):
    plan = query.plan_shards(world_size=2)
    assert plan.fingerprint == query.plan_shards(world_size=5, num_workers=2).fingerprint
    session = tq.Session()
    session.register_parquet("t", folder)
    assert session.sql(query.sql).plan_shards().fingerprint == plan.fingerprint
    others = [
        session.sql(query.sql + " AND id > 5").plan_shards(),
        session.sql(query.sql).plan_shards(split_rows=10),
    ]
    assert plan.fingerprint not in [other.fingerprint for other in others]
