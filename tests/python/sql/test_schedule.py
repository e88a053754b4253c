"""Promise: the weights of a mixture follow a schedule by epoch, by step, or by the part of the run that was delivered: each batch
has its shares by its place in the epoch, on any topology, in equal steps, before and after resumes."""

import collections
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq

SIZES = {"a": 900, "b": 600, "c": 300}
FIRST = {"a": 0, "b": 10_000, "c": 20_000}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root = tmp_path_factory.mktemp("schedule")
    session = tq.Session()
    for name, rows in SIZES.items():
        ids = np.arange(FIRST[name], FIRST[name] + rows)
        folder = support.write_parquet(root / name, pa.table({"id": ids}), files=3, row_group=50)
        session.register_parquet(name, folder)
    return session


@pytest.fixture
def without_processes(monkeypatch):
    """Worker shards are read in this process, so that many topologies take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)


def mixture(session, schedule, names="ab", stop="all"):
    queries = [session.sql(f"SELECT id FROM {name}") for name in names]
    return tq.mix(queries, weights=schedule, stop=stop)


def loader(session, schedule, names="ab", stop="all", **options):
    options = {"batch_size": 10, "rank": 0, "world_size": 1, **options}
    return tq.create_dataloader(
        mixture(session, schedule, names, stop), output_format="dict", **options
    )[0]


def sources(batch):
    return collections.Counter("abc"[row // 10_000] for row in batch)


def shares(batches):
    """Rows of the first source in each batch."""
    return [sources(batch)["a"] for batch in batches]


def ids(loader, steps=None):
    return [batch["id"] for batch in itertools.islice(iter(loader), steps)]


def test_weights_stay_until_the_next_point(session):
    schedule = tq.Schedule([(0, [0.8, 0.2]), (5, [0.5, 0.5]), (8, [0, 1])], by="step")
    found = ids(loader(session, schedule), 12)
    assert shares(found) == [8] * 5 + [5] * 3 + [0] * 4


def test_weights_move_in_a_line(session):
    schedule = tq.Schedule([(0, [1, 0]), (10, [0, 1])], by="step", linear=True)
    found = shares(ids(loader(session, schedule), 14))
    assert all(abs(rows - max(0, 10 - step)) <= 1 for step, rows in enumerate(found)), found
    assert found[10:] == [0] * 4


def test_weights_by_epoch(session):
    schedule = tq.Schedule([(0, [0.9, 0.1]), (1, [0.1, 0.9]), (3, [0.5, 0.5])], by="epoch")
    both = loader(session, schedule)
    first = [ids(both)[:3] for _ in range(4)]
    assert [shares(epoch) for epoch in first] == [[9] * 3, [1] * 3, [1] * 3, [5] * 3]
    both.set_epoch(1)
    assert ids(both)[:3] == first[1]


def test_weights_by_the_part_of_the_run(session):
    schedule = tq.Schedule(
        [(0, [0.9, 0.1]), (0.25, [0.6, 0.4]), (0.5, [0.1, 0.9])], by="fraction", epochs=2
    )
    both = loader(session, schedule)
    first = shares(ids(both))
    # 1,500 rows in 150 steps, of which the first half is a quarter of the run.
    assert (first[0], first[74], first[76]) == (9, 9, 6)
    assert shares(ids(both))[0] == 1
    # The same rows in other batches: half of them are delivered after another number of steps.
    halved = shares(ids(loader(session, schedule, batch_size=20)))
    assert (halved[36], halved[38]) == (18, 12)


@pytest.mark.parametrize("by", ["step", "fraction", "epoch"])
@pytest.mark.parametrize("linear", [False, True])
def test_all_rows_come_once_on_every_topology(session, without_processes, by, linear):
    at = {"step": 9, "fraction": 0.4, "epoch": 1}[by]
    schedule = tq.Schedule([(0, [1, 0, 2]), (at, [1, 3, 0])], by=by, linear=linear)
    for world, workers, batch in [(1, 0, 7), (2, 0, 11), (3, 2, 8), (2, 3, 5)]:
        found, steps = [], set()
        for rank in range(world):
            own = loader(
                session,
                schedule,
                "abc",
                rank=rank,
                world_size=world,
                num_workers=workers,
                batch_size=batch,
                shuffle=True,
            )
            batches = ids(own)
            assert len(batches) == len(own)
            assert all(len(rows) == batch for rows in batches[:-2])
            steps.add(len(batches))
            found += support.flat(batches)
        assert len(steps) == 1
        assert sorted(found) == sorted(
            row for name, rows in SIZES.items() for row in range(FIRST[name], FIRST[name] + rows)
        )


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_steps_are_those_of_the_rank_and_not_of_its_workers(session, without_processes, workers):
    schedule = tq.Schedule([(0, [0.8, 0.2]), (7, [0.2, 0.8])], by="step")
    for rank in range(2):
        found = ids(loader(session, schedule, rank=rank, world_size=2, num_workers=workers), 12)
        assert shares(found) == [8] * 7 + [2] * 5


def test_an_epoch_ends_with_the_first_that_has_a_weight_and_no_rows(session, without_processes):
    # 20 steps of 10 rows of a, then b and c: 300 rows of c last for 60 steps of 5.
    schedule = tq.Schedule([(0, [1, 0, 0]), (20, [0, 1, 1])], by="step")
    whole = ids(loader(session, schedule, "abc", "first"))
    assert len(whole) == 80
    assert sources(support.flat(whole)) == {"a": 200, "b": 300, "c": 300}
    of_ranks = [
        ids(
            loader(
                session,
                schedule,
                "abc",
                "first",
                rank=rank,
                world_size=2,
                num_workers=2,
                batch_size=5,
            )
        )
        for rank in range(2)
    ]
    assert [len(batches) for batches in of_ranks] == [80, 80]
    assert len(set(support.flat(support.flat(of_ranks)))) == 800


@pytest.mark.parametrize("by", ["step", "fraction"])
def test_a_run_that_goes_on_keeps_its_place_in_the_schedule(session, without_processes, by):
    points = {"step": 12, "fraction": 0.1}[by]
    schedule = tq.Schedule([(0, [0.8, 0.2]), (points, [0.2, 0.8])], by=by)
    whole = ids(loader(session, schedule))
    first = loader(session, schedule)
    running = iter(first)
    seen = [next(running)["id"] for _ in range(6)]
    state = json.loads(json.dumps(first.state_dict()))
    again = loader(session, schedule)
    again.load_state_dict(state)
    assert seen + ids(again) == whole
    # On two ranks of five rows each: by step six steps are left, by fraction 90 of 150 rows.
    rest, steps = [], {"step": 6, "fraction": 9}[by]
    for rank in range(2):
        other = loader(session, schedule, rank=rank, world_size=2, batch_size=5, num_workers=2)
        other.load_state_dict(state)
        own = ids(other)
        assert shares(own)[: steps + 3] == [4] * steps + [1] * 3
        rest += support.flat(own)
    assert sorted(support.flat(seen) + rest) == sorted(support.flat(whole))


def test_a_schedule_belongs_to_the_run(session):
    one = tq.Schedule([(0, [0.8, 0.2])], by="step")
    state = loader(session, one).state_dict()
    other = loader(session, tq.Schedule([(0, [0.8, 0.2]), (5, [0.5, 0.5])], by="step"))
    with pytest.raises(tq.CheckpointMismatchError, match="weights or stop= of the mixture"):
        other.load_state_dict(state)


def test_a_constant_schedule_is_a_mixture(session):
    schedule = tq.Schedule([(0, [0.7, 0.3])], by="step")
    plain = tq.mix(
        [
            (session.sql(f"SELECT id FROM {name}"), weight)
            for name, weight in [("a", 0.7), ("b", 0.3)]
        ]
    )
    options = {"batch_size": 10, "output_format": "dict", "shuffle": True}
    wanted = ids(tq.create_dataloader(plain, **options)[0])
    assert ids(loader(session, schedule, stop="first", shuffle=True)) == wanted


def test_values_are_plain(session):
    schedule = tq.Schedule(((0, np.array([3, 1])), (np.int64(4), (1, 1))), by="step", linear=True)
    assert schedule.to_dict() == {
        "points": [[0, [0.75, 0.25]], [4, [0.5, 0.5]]], "by": "step", "linear": True, "epochs": 1,
    }  # fmt: skip
    assert json.loads(json.dumps(schedule.to_dict())) == schedule.to_dict()
    assert schedule == tq.Schedule([(0, [0.75, 0.25]), (4, [0.5, 0.5])], by="step", linear=True)
    assert (
        repr(schedule) == "Schedule([(0, [0.75, 0.25]), (4, [0.5, 0.5])], by='step', linear=True)"
    )
    assert schedule.at(2) == [0.625, 0.375]
    assert schedule.at(9) == [0.5, 0.5]
    assert "Schedule" in repr(mixture(session, schedule))


@pytest.mark.parametrize(
    ("points", "options", "words"),
    [
        ([], {"by": "step"}, "1 to 10,000 points, got 0"),
        ([(0, [1, 1])], {"by": "row"}, "'epoch', 'step', 'fraction'"),
        ([(1, [1, 1])], {"by": "step"}, "must be at 0, got 1"),
        ([(0, [1, 1]), (0, [1, 2])], {"by": "step"}, "must ascend; 0 is followed by 0"),
        ([(0, [1, 1]), (5, [1])], {"by": "step"}, "2 weights, and that at 5 has 1"),
        ([(0, [0, 0])], {"by": "step"}, "all 0"),
        ([(0, [1, -1])], {"by": "step"}, "weight -1 must be a number of at least 0"),
        ([(0, [1, float("inf")])], {"by": "step"}, "at least 0"),
        ([(0, [1, 1]), (0.5, [1, 2])], {"by": "step"}, "position by='step'"),
        ([(0, [1, 1]), (1.5, [1, 2])], {"by": "fraction"}, "0 to 1, got 1.5"),
        ([(0, [1, 1])], {"by": "fraction", "epochs": 0}, "epochs"),
        ([(0, [1, 1])], {"by": "step", "epochs": 2}, 'by="fraction"'),
        ([(0, [1, 1])], {"by": "step", "linear": 1}, "linear"),
        ([0, 1], {"by": "step"}, "pairs of a position and weights"),
        (5, {"by": "step"}, "pairs of a position and weights"),
        ([(0, "ab")], {"by": "step"}, "weight 'a'"),
    ],
)
def test_what_is_no_schedule_is_refused(points, options, words):
    with pytest.raises(tq.ConfigError, match=words):
        tq.Schedule(points, **options)


def test_a_schedule_has_a_weight_for_each_query(session):
    schedule = tq.Schedule([(0, [1, 1, 1])], by="step")
    with pytest.raises(tq.ConfigError, match="3 weights for 2 queries"):
        mixture(session, schedule)
    with pytest.raises(tq.ConfigError, match="3 weights for 2 queries"):
        mixture(session, [1, 1, 1])
    with pytest.raises(
        tq.ConfigError, match=r"names \['a', 'x'\], and the queries are \['a', 'b'\]"
    ):
        queries = {name: session.sql(f"SELECT id FROM {name}") for name in "ab"}
        tq.mix(queries, weights={"a": 1, "x": 1})


def test_queries_have_names(session):
    a, b = (session.sql(f"SELECT id FROM {name}") for name in "ab")
    named = tq.mix({"web": (a, 3), "code": (b, 1)})
    assert (named.names, named.weights) == (["web", "code"], [0.75, 0.25])
    assert tq.mix({"web": a, "code": b}, weights={"code": 1, "web": 3}).weights == [0.75, 0.25]
    assert tq.mix([a, b], weights=[3, 1]).names == ["0", "1"]
    for wrong in ("", 5, "x" * 201):
        with pytest.raises(tq.ConfigError, match="no name of 1 to 200 letters"):
            tq.mix({wrong: (a, 1)})
