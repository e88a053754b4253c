"""Promise: with assignment="dynamic" the workers of a rank take splits as they finish others: skewed work is
balanced, every row is delivered once, and an epoch can be stopped anywhere and resumed on any topology. Options that
contradict this are refused."""

import itertools
import json
import os
import signal
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import support
import tensorquery as tq
from effort import METHODS
from tensorquery.sharding.dynamic_assignment import Ledger, message_of

ROWS, SPLITS = 1200, 24
SPLIT_ROWS = ROWS // SPLITS


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    table = pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) // SPLIT_ROWS})
    path = support.write_parquet(tmp_path_factory.mktemp("dynamic"), table, row_group=SPLIT_ROWS)
    session = tq.Session()
    session.register_parquet("t", path)
    session.register_view("kept", "SELECT * FROM t WHERE (id * 7) % 10 < 9 AND k <> 5")
    return session.sql("SELECT id, k FROM t")


@pytest.fixture(scope="module")
def filtered(query):
    return query.session.sql("SELECT id, k FROM kept")


def make(query, num_workers=2, batch_size=16, **options):
    """A loader with dynamic assignment over splits of 50 rows."""
    return tq.create_dataloader(
        query, batch_size=batch_size, num_workers=num_workers, split_rows=SPLIT_ROWS, assignment="dynamic", **options
    )  # fmt: skip


def ids_of(query):
    return sorted(query.to_arrow()["id"].to_pylist())


def received(batches):
    return support.flat(support.ids_of(batches))


def first(loader, batches):
    """The ids of the first batches, and the state after them as it comes back from JSON."""
    iterator = iter(loader)
    got = received(itertools.islice(iterator, batches))
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    return got, state


# ------------------------------------------------------------------------------------------------
# Exactly once, balanced.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 1), ("fork", 2), ("fork", 3), ("forkserver", 3)]
)
def test_every_row_once_in_each_epoch(query, filtered, method, workers):
    for chosen in (query, filtered) if method == "fork" else (filtered,):
        loader, dataset = make(
            chosen,
            workers,
            multiprocessing_context=method,
            persistent_workers=method == "forkserver",
        )
        for epoch in range(2):
            assert dataset.epoch == epoch
            batches = list(loader)
            assert sorted(received(batches)) == ids_of(chosen)
            short = [len(batch["id"]) for batch in batches if len(batch["id"]) < 16]
            assert len(short) <= workers


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("window", [None, 1, 100])
def test_every_row_once_when_shuffled(filtered, shuffle, window):
    loader, _ = make(filtered, shuffle=shuffle, shuffle_buffer_size=window)
    orders = [received(loader), received(loader)]
    assert [sorted(order) for order in orders] == [ids_of(filtered)] * 2
    if shuffle:
        assert orders[0] != orders[1]


class Waits:
    """A transform that waits with some rows until the other workers have done so many splits; it adds its process.

    What is waited for is done, not slept for: so the outcome does not depend on how fast the machine is.

    Args:
        folder: An empty folder, for notes of which process has met which split.
        enough: Called with a batch's own split, and the splits that other processes have met.
    """

    def __init__(self, folder, enough):
        self.folder, self.enough = folder, enough

    def __call__(self, batch):
        split, pid, end = int(batch["k"][0]), os.getpid(), time.monotonic() + 60
        (self.folder / f"{split}-{pid}").touch()
        # Who waits in vain goes on, and the test fails by what it counts.
        while not self.enough(split, self.met_by_others(pid)) and time.monotonic() < end:
            time.sleep(0.002)
        return support.with_pid(batch)

    def met_by_others(self, pid):
        notes = [path.name.split("-") for path in self.folder.iterdir()]
        return {int(split) for split, by in notes if int(by) != pid}


def others_did_two_thirds(split, met):
    return split != 0 or len(met) >= SPLITS * 2 // 3


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_slow_split_is_one_workers_and_the_others_go_on(query, method, tmp_path):
    transform = Waits(tmp_path, others_did_two_thirds)
    loader, _ = make(query, batch_size=10, transform=transform, multiprocessing_context=method)
    batches = list(loader)
    assert sorted(received(batches)) == list(range(ROWS))
    splits = {}
    for batch in batches:
        splits.setdefault(int(batch["pid"]), Counter()).update(batch["k"].tolist())
    slow = next(pid for pid, of in splits.items() if of[0])
    # Static dealing would give each of them 12 of the 24.
    assert len(splits[slow]) <= 8, splits
    assert sum(len(of) for pid, of in splits.items() if pid != slow) >= 16


def slow_rows(batch):
    """A transform: the rows of split 0 take long, wherever they are."""
    time.sleep(0.06 * int((batch["k"] == 0).sum()) + 0.002)
    return support.with_pid(batch)


@pytest.mark.slow
def test_shuffled_work_is_balanced_too(query):
    loader, _ = make(
        query, batch_size=10, shuffle=True, transform=slow_rows, persistent_workers=True
    )
    list(loader)
    rows = Counter()
    for batch in loader:
        rows[int(batch["pid"])] += len(batch["id"])
    assert sum(rows.values()) == ROWS
    # A window of the default size would have given the first worker all. How the rest is divided depends on the load of
    # the machine; that a slow split keeps one worker from the others is shown above.
    assert len(rows) == 2, rows


def all_three_have_begun(split, met):
    """The large split takes until the others have done nearly all small ones; of these, each waits for the other."""
    return len(met - {0}) >= 13 if split == 0 else bool(met - {0})


@pytest.mark.slow
def test_a_large_split_is_one_workers_and_the_others_take_the_rest(tmp_path):
    # One of 16 splits has 90 % of all rows.
    sizes = [1350] + [10] * 15
    files, notes = tmp_path / "files", tmp_path / "notes"
    files.mkdir()
    notes.mkdir()
    at = 0
    for number, size in enumerate(sizes):
        ids = np.arange(at, at + size)
        at += size
        pq.write_table(
            pa.table({"id": ids, "k": np.full(size, number)}), files / f"{number:02}.parquet"
        )
    session = tq.Session()
    session.register_parquet("t", str(files))
    loader, _ = tq.create_dataloader(
        table="t", session=session, batch_size=10, num_workers=3, split_rows=1, assignment="dynamic",
        transform=Waits(notes, all_three_have_begun),
    )  # fmt: skip
    batches = list(loader)
    assert sorted(received(batches)) == list(range(sum(sizes)))
    # Parquet splits are row groups, so the large file is one of them.
    splits = {}
    for batch in batches:
        splits.setdefault(int(batch["pid"]), set()).update(batch["k"].tolist())
    assert len(splits) == 3
    large = next(of for of in splits.values() if 0 in of)
    assert len(large) <= 3, splits


@pytest.mark.slow
def test_without_workers_it_is_the_same_as_static(filtered):
    options = {"batch_size": 16, "split_rows": SPLIT_ROWS, "shuffle": True, "num_workers": 0}
    static, _ = tq.create_dataloader(filtered, **options)
    dynamic, dataset = tq.create_dataloader(filtered, assignment="dynamic", **options)
    assert len(dynamic) == len(static)
    assert support.ids_of(dynamic) == support.ids_of(static)
    assert dataset.state_dict()["layout"]["dynamic"] is False


@pytest.mark.slow
def test_an_old_torch_that_waits_for_the_slowest_is_refused(query, monkeypatch):
    class Old:
        def __init__(self, dataset, num_workers=0):
            pass

    monkeypatch.setattr(torch.utils.data, "DataLoader", Old)
    with pytest.raises(tq.ConfigError, match=r"num_workers=2 needs torch 2.6 or newer"):
        tq.create_dataloader(query, num_workers=2, assignment="dynamic")


@pytest.mark.slow
def test_rows_are_counted_and_batches_are_not(filtered):
    loader, dataset = make(filtered)
    with pytest.raises(TypeError, match='assignment="dynamic".*dataset.num_rows'):
        len(loader)
    assert dataset.num_rows == len(ids_of(filtered))
    assert sorted(received(list(loader))) == ids_of(filtered)


# ------------------------------------------------------------------------------------------------
# Stop and resume.

SHUFFLES = [{}, {"shuffle": True, "shuffle_buffer_size": 90}, {"shuffle_buffer_size": 120}]


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", SHUFFLES, ids=["plain", "shuffled", "window"])
@pytest.mark.parametrize("stop", [1, 9, 40, 60])
def test_stop_anywhere_and_resume(filtered, shuffle, stop):
    loader, _ = make(filtered, **shuffle)
    before, state = first(loader, stop)
    assert len(json.dumps(state["cursors"])) < 600
    for workers, options in [(2, {}), (3, {}), (0, {}), (1, {"batch_size": 7})]:
        again, dataset = make(filtered, workers, **shuffle, **options)
        again.load_state_dict(state)
        after = received(again)
        assert sorted(before + after) == ids_of(filtered)
        assert dataset.epoch == 1
    static, _ = tq.create_dataloader(
        filtered, batch_size=16, num_workers=2, split_rows=SPLIT_ROWS, **shuffle
    )
    static.load_state_dict(state)
    assert sorted(before + received(static)) == ids_of(filtered)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", SHUFFLES, ids=["plain", "shuffled", "window"])
def test_a_chain_of_stops(filtered, shuffle):
    got, state = [], None
    for stop, workers, assignment in [
        (5, 2, "dynamic"), (9, 2, "dynamic"), (6, 3, "dynamic"), (8, 2, "static"), (4, 1, "dynamic"),
        (7, 0, "dynamic"), (9, 2, "dynamic"), (1000, 3, "dynamic"),
    ]:  # fmt: skip
        loader, _ = tq.create_dataloader(
            filtered, batch_size=16, num_workers=workers, split_rows=SPLIT_ROWS, assignment=assignment, **shuffle
        )  # fmt: skip
        if state is not None:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        part, state = first(loader, stop)
        got += part
    assert sorted(got) == ids_of(filtered)
    assert state["epoch"] == 1
    assert state["step"] == 0


@pytest.mark.slow
def test_a_state_counts_what_was_received_at_every_step(filtered):
    loader, _ = make(filtered, 2, batch_size=50, shuffle=True, shuffle_buffer_size=130)
    got, states = [], []
    for batch in loader:
        got.append(batch["id"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert states[-1]["epoch"] == 1
    for step, state in enumerate(states[:-1], 1):
        assert state["step"] == step
        here, _ = make(filtered, 0, batch_size=50, shuffle=True, shuffle_buffer_size=130)
        here.load_state_dict(state)
        assert sorted(support.flat(got[:step]) + received(here)) == ids_of(filtered)


@pytest.mark.slow
def test_the_state_of_two_ranks(filtered):
    ranks = [
        make(filtered, 2, rank=rank, world_size=2, remainder="uneven", shuffle=True)[0]
        for rank in range(2)
    ]
    whole = [received(loader) for loader in ranks]
    assert sorted(support.flat(whole)) == ids_of(filtered)
    for loader in ranks:
        loader.set_epoch(0)
    parts = [first(ranks[0], 7), first(ranks[1], 3)]
    merged = tq.merge_state_dicts([state for _, state in parts])
    before = support.flat([ids for ids, _ in parts])
    for world_size in (1, 2, 3):
        after = []
        for rank in range(world_size):
            loader, _ = make(
                filtered, 2, rank=rank, world_size=world_size, remainder="uneven", shuffle=True
            )
            loader.load_state_dict(json.loads(json.dumps(merged)))
            after += received(loader)
        assert sorted(before + after) == ids_of(filtered)
    alone, _ = make(filtered, 2, rank=0, world_size=2, remainder="uneven", shuffle=True)
    alone.load_state_dict(parts[0][1])
    with pytest.raises(tq.CheckpointMismatchError, match=r"rank 1 of 2.*merge_state_dicts"):
        next(iter(alone))


@pytest.mark.slow
def test_a_rank_that_received_nothing_merges(filtered):
    ranks = [make(filtered, 2, rank=rank, world_size=2, remainder="uneven")[0] for rank in range(2)]
    before, state = first(ranks[0], 4)
    idle = iter(ranks[1])
    merged = tq.merge_state_dicts([state, ranks[1].state_dict()])
    idle.close()
    loader, _ = make(filtered, 2)
    loader.load_state_dict(merged)
    assert sorted(before + received(loader)) == ids_of(filtered)


@pytest.mark.slow
def test_a_damaged_state_is_refused(query):
    from tensorquery.sharding.checkpoint import check_sum

    loader, _ = make(query)
    _, state = first(loader, 30)
    consumed, *workers = state["cursors"]["0"]
    held = workers[0] if workers[0] and workers[0][0] else workers[1]
    wrong = [
        [consumed],
        [[0], *workers],
        [[3, 2], *workers],
        [[0, SPLITS + 1], *workers],
        [[0, SPLITS], *workers],  # what is held is consumed too
        [consumed, held, held],
        [consumed, [2**40], []],
        [consumed, [1, SPLITS, *held[2:]], []],
        [consumed, held[:-1], []],
    ]
    for cursors in wrong:
        damaged = {**state, "cursors": {"0": cursors}}
        damaged["check"] = check_sum(damaged)
        again, _ = make(query)
        again.load_state_dict(damaged)
        with pytest.raises(tq.CheckpointMismatchError, match="damaged"):
            next(iter(again))


# ------------------------------------------------------------------------------------------------
# Workers that live on, start late, or die.


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_persistent_workers(filtered, method):
    loader, dataset = make(
        filtered, persistent_workers=True, multiprocessing_context=method, shuffle=True,
        transform=support.with_pid,
    )  # fmt: skip
    pids = set()
    for _ in range(2):
        batches = list(loader)
        assert sorted(received(batches)) == ids_of(filtered)
        pids |= {int(batch["pid"]) for batch in batches}
    for stop in (1, 5, 30):
        next(itertools.islice(iter(loader), stop, None))  # breaks off with batches under way
        batches = list(loader)
        assert sorted(received(batches)) == ids_of(filtered)
        pids |= {int(batch["pid"]) for batch in batches}
    assert len(pids) == 2
    dataset.set_epoch(7)
    assert sorted(received(loader)) == ids_of(filtered)
    assert dataset.epoch == 8
    before, state = first(loader, 11)
    loader.load_state_dict(state)
    assert sorted(before + received(loader)) == ids_of(filtered)
    assert sorted(received(loader)) == ids_of(filtered)


@pytest.mark.slow
def test_workers_of_an_older_iteration_take_nothing_of_a_newer_one(filtered):
    loader, _ = make(filtered, worker_init_fn=support.second_starts_late)
    older = iter(loader)
    next(older)  # its second worker starts while the newer iteration runs
    newer = iter(loader)
    got = [next(newer)]
    time.sleep(2.0)
    with pytest.raises(tq.ConfigError, match="newer one"):
        next(older)
    assert sorted(received([*got, *newer])) == ids_of(filtered)


def die_late(batch):
    """A transform that ends its process when it meets row 900."""
    if 900 in batch["id"].tolist():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_the_state_goes_on(query):
    loader, _ = make(query, transform=die_late)
    # Rows and state in one step: torch's signal handler may raise between any two.
    saved = [], None
    # torch says that the worker has died, or fails to fetch a batch whose memory died with it.
    with pytest.raises((RuntimeError, EOFError, OSError)):
        for batch in loader:
            saved = saved[0] + batch["id"].tolist(), loader.state_dict()
    got, state = saved
    assert 0 < len(got) < ROWS
    again, _ = make(query)
    again.load_state_dict(state)
    assert sorted(got + received(again)) == list(range(ROWS))


@pytest.mark.slow
def test_an_error_in_a_worker_is_raised(query):
    loader, _ = make(query, transform=support.fail)
    with pytest.raises(ZeroDivisionError):
        list(loader)


@pytest.mark.slow
def test_an_empty_result_and_fewer_splits_than_workers(query):
    nothing = query.session.sql("SELECT id, k FROM t WHERE id < 0 AND k * 2 = 7")
    loader, _ = make(nothing)
    assert list(loader) == []
    one = query.session.sql("SELECT id, k FROM t WHERE id < 40")
    loader, _ = make(one, 3)
    assert sorted(received(loader)) == list(range(40))
    assert sorted(received(loader)) == list(range(40))


# ------------------------------------------------------------------------------------------------
# Small states.


def test_the_ledger_joins_runs():
    rng = np.random.default_rng(3)
    for _ in range(20):
        order = rng.permutation(50).tolist()
        ledger, done = Ledger(2, 50), set()
        for piece in order:
            ledger.received(piece % 2, message_of([piece], [1, piece]))
            ledger.ended(1, [piece])  # the same again changes nothing
            done.add(piece)
            runs, first_worker, second = ledger.cursors()
            bounds = list(zip(runs[::2], runs[1::2], strict=True))
            assert {i for start, end in bounds for i in range(start, end)} == done
            assert all(a[1] < b[0] for a, b in itertools.pairwise(bounds))
            # It has delivered all that it had.
            assert second == [0]
        assert ledger.cursors()[0] == [0, 50]
        assert first_worker != []
    with pytest.raises(tq.DataError, match="49 of 50"):
        ledger.check(49)


@pytest.mark.slow
def test_a_state_does_not_grow_with_the_epoch(query):
    loader, _ = make(query, 2, batch_size=SPLIT_ROWS // 2)
    sizes = []
    for _ in loader:
        state = loader.state_dict()
        if state["epoch"] == 0:
            sizes.append(len(json.dumps(state["cursors"])))
    assert len(sizes) >= 40
    assert max(sizes) < 400


# ------------------------------------------------------------------------------------------------
# Refusals.


class Dealer:
    """A custom strategy."""

    def generate(self, splits, num_shards, epoch):
        """All to the first."""
        return [list(splits), *[[] for _ in range(num_shards - 1)]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitions": 4}, "partitions=4"),
        ({"shuffle": "global"}, 'shuffle="global"'),
        ({"split_strategy": Dealer()}, "split_strategy=Dealer"),
        ({"remainder": "drop"}, 'remainder="drop"'),
        ({"remainder": "pad"}, 'remainder="pad"'),
        ({"in_order": True}, "in_order=True.*slowest"),
        ({"rank": 0, "world_size": 2}, 'world_size=2 needs remainder="uneven".*short batch'),
    ],
)
def test_what_does_not_go_with_it(query, options, words):
    with pytest.raises(tq.ConfigError, match=words):
        make(query, **options)


@pytest.mark.slow
def test_mixtures_and_unknown_assignments_are_refused(query):
    with pytest.raises(tq.ConfigError, match="a mixture"):
        make(tq.mix([(query, 1.0)]))
    with pytest.raises(tq.ConfigError, match="assignment='random'"):
        tq.create_dataloader(query, assignment="random")


@pytest.mark.slow
def test_a_foreign_loader_is_refused(query):
    dataset = tq.QueryDataset(query, assignment="dynamic", rank=0, world_size=1)
    assert sorted(received(DataLoader(dataset, batch_size=None))) == list(range(ROWS))
    with pytest.raises(tq.ConfigError, match="create_dataloader"):
        list(DataLoader(dataset, batch_size=None, num_workers=2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_trace_is_refused(query, workers):
    loader, dataset = make(query, workers)
    next(iter(loader))
    with pytest.raises(tq.ConfigError, match='assignment="static"'):
        dataset.trace(step=0)


def ask_for_a_state(batch):
    """A transform that asks for the state of a worker."""
    torch.utils.data.get_worker_info().dataset.state_dict()
    return batch


@pytest.mark.slow
def test_a_workers_own_state_is_refused(query):
    loader, _ = make(query, transform=ask_for_a_state)
    with pytest.raises(tq.ConfigError, match=r"loader\.state_dict\(\)"):
        list(loader)
