"""Promises 1, 2, 3 and 5 (docs/promises.md) with ``on_transform_error="skip"``: rows on which the transform fails are left out
and named. Each other row comes once, on all ranks in the steps that were dealt, in full batches, and a state resumes exactly."""

import itertools
import json
import random
import warnings
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq
from stopping import query_of, state_of

pytestmark = pytest.mark.filterwarnings("ignore:transform failed on a row:UserWarning")

ROWS = stopping.ROWS
MODES = {
    "off": {},
    "on": {"shuffle": True, "shuffle_buffer_size": 20},
    "global": {"shuffle": "global"},
    "custom": {"split_strategy": support.LastFirst()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(tmp_path_factory.mktemp("failing") / "t")


@pytest.fixture
def without_processes(monkeypatch):
    """Worker shards are read in this process, so that many topologies take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)


class Failing:
    """A transform that fails on some ids, and spoils the batch that it was given before it does."""

    def __init__(self, bad):
        self.bad, self.calls = frozenset(bad), 0

    def __call__(self, batch):
        self.calls += 1
        ids, batch["id"] = batch["id"], None
        wrong = [row for row in ids if row in self.bad]
        if wrong:
            raise ValueError(f"no picture of {wrong[0]}")
        return {"id": list(ids)}


def loader_of(query, bad, **options):
    transform = bad if callable(bad) else Failing(bad)
    return stopping.loader_of(query, transform=transform, on_transform_error="skip", **options)


def sizes_of(rows, steps, batch_size):
    """The rule, by the number of good rows: full batches while each step after has a row, and the others evenly."""
    full = 0
    while full < steps and rows - (full + 1) * batch_size >= steps - full - 1:
        full += 1
    rows, steps = rows - full * batch_size, steps - full
    return [batch_size] * full + [rows // steps + (part < rows % steps) for part in range(steps)]


def bad_ids(dice):
    """A few rows anywhere, a run of many, or most of the last ones."""
    spread = dice.sample(range(ROWS), dice.choice([1, 5, 25]))
    start = dice.randrange(ROWS)
    run = range(start, min(ROWS, start + dice.choice([0, 9, 40])))
    return {*spread, *run, *range(ROWS - dice.choice([0, 0, 3, 30]), ROWS)}


def read(query, bad, topology, options, state=None, steps=None):
    """Batches by rank, and the merged state after so many steps of each."""
    world_size, workers, batch_size = topology
    found, states, failed = [], [], []
    for rank in range(world_size):
        loader = loader_of(
            query,
            bad,
            rank=rank,
            world_size=world_size,
            num_workers=workers,
            batch_size=batch_size,
            **options,
        )
        if state is not None:
            loader.load_state_dict(state)
        batches = stopping.ids(itertools.islice(iter(loader), steps))
        if steps is None and state is None:
            assert len(batches) == len(loader)
        found.append(batches)
        states.append(state_of(loader))
        failed += loader.dataset.failed_rows
    return found, states, failed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_good_rows_come_once_in_equal_steps_and_resume(folder, without_processes, mode, seed):
    dice, options, query = random.Random(f"{mode} {seed}"), MODES[mode], query_of(folder)
    bad = bad_ids(dice)
    topology = (dice.choice([1, 2, 3]), dice.choice([0, 0, 1, 2]), dice.choice([2, 4, 7, 16]))
    _, workers, batch_size = topology
    found, _, failed = read(query, bad, topology, options)
    good = sorted({*range(ROWS)} - bad)
    assert sorted(support.flat(support.flat(found))) == good
    assert len({len(batches) for batches in found}) == 1
    if not workers:
        for batches in found:
            sizes = [len(batch) for batch in batches]
            assert sizes == sizes_of(sum(sizes), len(sizes), batch_size)
    # Each is named once, with its file, physical row and error.
    starts, start = {}, 0
    for path, rows in sorted(Counter(files_of(folder)).items()):
        starts[path], start = start, start + rows
    named = [starts[one.path] + int(one.unit.removeprefix("row ")) for one in failed]
    assert sorted(named) == sorted(bad)
    assert all(
        one.error == f"ValueError: no picture of {number}"
        for one, number in zip(failed, named, strict=True)
    )
    # From a step on: the same batches on the same topology, the rows that are left on another.
    steps = dice.randrange(len(found[0]) + 1)
    head, states, _ = read(query, bad, topology, options, steps=steps)
    assert head == [batches[:steps] for batches in found]
    if steps == len(found[0]):
        return
    state = tq.merge_state_dicts(states)
    rest, ends, _ = read(query, bad, topology, options, state)
    assert rest == [batches[steps:] for batches in found]
    assert ends[0]["epoch"] == 1
    if mode != "custom":
        # Two ranks need a row each.
        other = (
            dice.choice([1, 2]) if steps < 2 else 1,
            dice.choice([0, 1, 2]),
            dice.choice([3, 9]),
        )
        rest, _, _ = read(query, bad, other, options, state)
        assert sorted(support.flat([*support.flat(head), *support.flat(rest)])) == good
        assert len({len(batches) for batches in rest}) == 1


def files_of(folder):
    """The file of each row."""
    import pyarrow.dataset as ds

    for fragment in ds.dataset(folder, format="parquet").get_fragments():
        yield from [fragment.path] * fragment.count_rows()


def test_an_epoch_is_resumed_again_and_again(folder, without_processes):
    """Other topologies, with the option and without: the rows that failed stay left out, and the others come once."""
    query, options = query_of(folder, "k <> 2"), {"shuffle": True, "shuffle_buffer_size": 30}
    bad = {*range(0, ROWS, 17), *range(100, 112)}
    received, state, gone = [], None, 0
    for topology in [(2, 0, 5), (1, 2, 7), (3, 0, 4), (2, 1, 6)]:
        found, states, failed = read(query, bad, topology, options, state, steps=2)
        state, gone = tq.merge_state_dicts(states), gone + len(failed)
        received += support.flat(support.flat(found))
        assert state["layout"]["refills"] is True
    assert json.loads(json.dumps(state)) == state
    loader = stopping.resumed(query, state, **options)
    rest = support.flat(stopping.ids(loader))
    delivered = Counter(received + rest)
    assert set(delivered.values()) == {1}
    wanted = {row for row in range(ROWS) if row % 5 != 2}
    # The last run had no transform: it delivers bad rows that were not tried before.
    assert wanted - {*delivered} <= bad
    assert len(wanted - {*delivered}) == gone > 0
    # And back: a state without left-out rows goes on with the option.
    state = state_of(stopping.resumed(query, state_of(loader), **options))
    assert loader_of(query, bad, **options).load_state_dict(state) is None


def test_nothing_fails_and_nothing_changes(tmp_path):
    """Batches are those of the default, bit by bit, in every output format."""
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "id": np.arange(500),
            "x": rng.random(500).astype("float32"),
            "y": rng.random(500).astype("float32"),
            "word": [None if i % 7 == 0 else f"w{i % 5}" for i in range(500)],
            "list": [list(range(i % 4)) for i in range(500)],
        }
    )
    session = tq.Session()
    session.register_table("t", table)
    columns = {"stack": {"v": ["x", "y"]}, "pad": {"list": 0}, "nulls": {"word": ""}}
    for form, options in [("torch", columns), ("numpy", columns), ("arrow", {}), ("dict", {})]:
        for shuffle in (False, True):
            both = []
            for skip in ({}, {"on_transform_error": "skip"}):
                loader, _ = tq.create_dataloader(
                    session.table("t"), batch_size=33, shuffle=shuffle, output_format=form,
                    transform=lambda batch: batch, **options, **skip,
                )  # fmt: skip
                both.append([str(described(batch)) for batch in loader])
            assert both[0] == both[1]


def described(batch):
    return batch.to_pydict() if isinstance(batch, pa.RecordBatch) else support.describe(batch)


def test_more_failures_than_the_limit_are_an_error(folder, without_processes):
    query = query_of(folder)
    always = Failing(range(ROWS))
    with pytest.raises(
        tq.DataError, match="failed on 6 rows of rank 0, and max_transform_errors=5"
    ) as caught:
        list(loader_of(query, always, max_transform_errors=5))
    assert isinstance(caught.value.__cause__, ValueError)
    assert always.calls < 30
    # As many as allowed are no error; every epoch counts anew.
    loader = loader_of(query, range(5), max_transform_errors=5)
    for epoch in range(2):
        assert len(support.flat(stopping.ids(loader))) == ROWS - 5
        assert [row.epoch for row in loader.dataset.failed_rows] == [epoch] * 5
    with pytest.raises(tq.DataError, match="max_transform_errors=0 allows no more"):
        list(loader_of(query, {3}, max_transform_errors=0))
    # Almost all of a rank: too few are left for its steps.
    with pytest.raises(
        tq.DataError, match=r"rank [01] has \d rows? left for 3 steps, since transform failed on"
    ):
        for rank in range(2):
            list(loader_of(query, range(4, ROWS), batch_size=50, rank=rank, world_size=2))
    # One rank alone ends then.
    for workers in (0, 2):
        loader = loader_of(
            query, {*range(4, 100), *range(101, ROWS)}, batch_size=20, num_workers=workers
        )
        assert len(loader) == 12
        found = stopping.ids(loader)
        assert sorted(support.flat(found)) == [0, 1, 2, 3, 100]
        assert loader.dataset.epoch == 1


def test_failures_that_no_row_is_to_blame_for_are_errors(folder):
    query = query_of(folder)

    def together(batch):
        if len(batch["id"]) > 3:
            raise ValueError("too many")
        return batch

    with pytest.raises(tq.DataError, match="together, and on none of them alone") as caught:
        list(loader_of(query, together))
    assert str(caught.value.__cause__) == "too many"

    for error in (MemoryError("full"), torch.cuda.OutOfMemoryError("full"), KeyboardInterrupt()):

        def short(batch, error=error):
            raise error

        with pytest.raises(type(error)):
            next(iter(loader_of(query, short)))

    # Conversion fails before the transform is called.
    session = tq.Session()
    session.register_table("n", pa.table({"v": [1, None, 3]}))
    loader, _ = tq.create_dataloader(
        session.table("n"), batch_size=2, transform=lambda batch: batch, on_transform_error="skip"
    )
    with pytest.raises(tq.DataError, match='column "v"'):
        list(loader)

    def ends(batch):
        if 7 in batch["id"]:
            raise StopIteration
        return batch

    loader = loader_of(query, ends)
    assert 7 not in support.flat(stopping.ids(loader))
    assert "StopIteration" in loader.dataset.failed_rows[0].error


def test_rows_that_failed_are_named_logged_and_can_be_excluded(folder, caplog):
    query, bad = query_of(folder), {3, 50, 51, 239}
    loader = loader_of(query, bad)
    with (
        caplog.at_level("INFO", "tensorquery"),
        pytest.warns(
            UserWarning, match=r"transform failed on a row \(ValueError: no picture of 3\)"
        ) as seen,
    ):
        list(loader)
    assert len(seen) == 1
    assert sum("which is left out: ValueError" in one.message for one in caplog.records) == 4
    found = loader.dataset.failed_rows
    assert isinstance(found[0], tq.Quarantined)
    assert len(found) == 4
    exclude = [row.place for row in found]
    later = stopping.loader_of(query, transform=Failing(bad), exclude=exclude)
    assert support.flat(stopping.ids(later)) == sorted({*range(ROWS)} - bad)
    rows = tq.QueryRows(query, split_rows=9)
    splits = later.dataset.shard_plan().splits()
    starts = [0, *itertools.accumulate(split.row_count for split in splits)]
    assert [rows[starts[row.split] + row.row]["id"] for row in found] == sorted(bad)
    with pytest.raises(
        tq.ConfigError, match='"skip" the rows of a step depend on which rows before it failed'
    ):
        loader.dataset.trace(step=0)
    with pytest.raises(tq.ConfigError, match="a receipt could not say which rows a step had"):
        loader.dataset.receipt()
    assert loader.dataset.metrics()["rows"] == ROWS - 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": None}, "there is none"),
        ({"batch_size": 1}, "batch_size=1: a failing row would cost a step"),
        ({"remainder": "drop"}, 'remainder="drop"'),
        ({"remainder": "pad"}, 'remainder="pad"'),
        ({"remainder": "uneven"}, 'remainder="uneven"'),
        ({"partitions": 4, "batch_size": 8}, "partitions=4"),
        ({"transform_threads": 2}, "transform_threads=2"),
        ({"assignment": "dynamic"}, 'assignment="dynamic"'),
        (
            {"on_transform_error": "ignore"},
            "on_transform_error='ignore' must be one of 'raise', 'skip'",
        ),
        (
            {"on_transform_error": "raise", "max_transform_errors": 3},
            "max_transform_errors=3 limits",
        ),
        ({"max_transform_errors": -1}, "max_transform_errors=-1 must be"),
        ({"max_transform_errors": True}, "max_transform_errors=True must be"),
        ({"max_transform_errors": 2.5}, "max_transform_errors=2.5 must be"),
    ],
)
def test_options_that_fix_the_rows_of_a_batch_are_refused(folder, options, words):
    options = {"transform": Failing(()), "on_transform_error": "skip", **options}
    with pytest.raises(tq.ConfigError, match=words):
        stopping.loader_of(query_of(folder), **options)
    with pytest.raises(tq.ConfigError, match=words):
        tq.QueryDataset(query_of(folder), rank=0, world_size=1, **options)


def test_mixtures_and_lone_states_are_refused(folder):
    query = query_of(folder)
    with pytest.raises(tq.ConfigError, match="a mixture"):
        loader_of(tq.mix([(query, 1), (query, 2)]), ())
    loader = loader_of(query, {1, 2}, world_size=2)
    next(iter(loader))
    state = state_of(loader)
    with pytest.raises(tq.CheckpointMismatchError, match=r"rank 1 of 2.*merge_state_dicts"):
        other = loader_of(query, {1, 2}, world_size=2, rank=1)
        other.load_state_dict(state)
        next(iter(other))
    for damaged in (False, 1, "yes"):
        wrong = {**state, "layout": {**state["layout"], "refills": damaged}}
        with pytest.raises(tq.CheckpointMismatchError, match="'refills' of a layout"):
            loader_of(query, (), world_size=2).load_state_dict(wrong)


@pytest.mark.slow
def test_worker_processes_leave_rows_out(folder):
    """Real ones, which live on: what they left out is known in the training process, and their errors arrive."""
    query, bad = query_of(folder), {*range(0, ROWS, 13), *range(200, 215)}
    loader = loader_of(query, bad, num_workers=2, persistent_workers=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch in range(2):
            iterator = iter(loader)
            head = stopping.ids(itertools.islice(iterator, 5))
            state = state_of(loader)
            rest = stopping.ids(iterator)
            assert sorted(support.flat(head + rest)) == sorted({*range(ROWS)} - bad)
            assert len(head + rest) == len(loader)
            assert len([row for row in loader.dataset.failed_rows if row.epoch == epoch]) == len(
                bad
            )
    resumed = loader_of(query, bad, num_workers=2)
    resumed.load_state_dict(state)
    assert stopping.ids(resumed) == rest
    with pytest.raises(
        tq.DataError, match=r"rows of worker \d of rank 0, and max_transform_errors=2"
    ):
        list(loader_of(query, bad, num_workers=2, max_transform_errors=2))
