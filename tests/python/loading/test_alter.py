"""Promises 1, 2, 4 and 5 (docs/promises.md): a query that is altered in the middle of an epoch delivers each row of the altered
result that was not delivered yet once, on any topology, before and after resumes; the next epoch delivers all of it."""

import itertools
import json
import random
import re

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import ranks
import stopping
import support
import tensorquery as tq
from effort import LONG

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FIRST = {"a": 0, "b": 10_000, "c": 20_000}
FILE_ROWS = {"a": 60, "b": 40, "c": 25}


@pytest.fixture
def without_processes(monkeypatch):
    """Worker shards are read in this process, so that many topologies take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)


def name_of(row):
    return "abc"[row // 10_000]


class World:
    """Tables whose queries are altered, the rows that their result has, and what ranks have received of it.

    Each source is a table of some files, narrowed by some filters. A row is known by its id.
    """

    def __init__(self, root, dice, **options):
        self.root, self.dice, self.options = root, dice, options
        self.files, self.filters, self.weights = {}, {}, {}
        for name in FIRST:
            self.files[name] = [self.write(name, number) for number in range(3)]
            self.filters[name] = []
        self.weights = {"a": 0.5, "b": 0.5}
        self.received = []
        self.loaders, self.running, self.topology = [], [], None

    def write(self, name, number):
        """One file of a source; the same one where it was written before."""
        folder = self.root / name / str(number)
        start = FIRST[name] + number * FILE_ROWS[name]
        if not folder.exists():
            ids = pa.table({"id": np.arange(start, start + FILE_ROWS[name])})
            support.write_parquet(folder, ids, row_group=15)
        return folder

    def query(self, name):
        session = tq.Session()
        session.register_parquet(
            name,
            [str(path) for folder in self.files[name] for path in sorted(folder.glob("*.parquet"))],
        )
        query = session.sql(f"SELECT id FROM {name}")
        for condition in self.filters[name]:
            query = query.select(filters=condition)
        return query

    def mixture(self):
        pairs = {name: (self.query(name), weight) for name, weight in self.weights.items()}
        return tq.mix(pairs, stop="all")

    def rows(self, name):
        """The rows of a source's query, known without tensorquery."""
        found = []
        for folder in self.files[name]:
            start = FIRST[name] + int(folder.name) * FILE_ROWS[name]
            found += range(start, start + FILE_ROWS[name])
        for condition in self.filters[name]:
            modulus, rest = (int(part) for part in condition.removeprefix("id % ").split(" <> "))
            found = [row for row in found if row % modulus != rest]
        return set(found)

    def result(self):
        return set().union(*(self.rows(name) for name in self.weights))

    def start(self, state=None):
        """New loaders on another topology, which go on from a state where there is one."""
        left = len(self.result() - set(self.received))
        # Fewer rows than ranks have no equal steps.
        world = self.dice.choice([1, 2, 3][: left or 3])
        workers = self.dice.choice([0, 0, 1, 2])
        of_run = {
            "world_size": world,
            "num_workers": workers,
            "batch_size": self.dice.randrange(5, 14),
        }
        self.loaders = [
            stopping.loader_of(self.mixture(), **self.options, **of_run, rank=rank, split_rows=15)
            for rank in range(world)
        ]
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)
        self.running = [iter(loader) for loader in self.loaders]

    def step(self, steps):
        """Some steps of all ranks; returns whether the epoch goes on."""
        for _ in range(steps):
            batches = [next(running, None) for running in self.running]
            ends = [batch is None for batch in batches]
            assert len(set(ends)) == 1, "ranks take other numbers of steps"
            if ends[0]:
                return False
            rows = [row for batch in batches for row in batch["id"]]
            assert set(rows) <= self.result(), "a row of another result"
            self.received += rows
        return self.state()["epoch"] == 0

    def alter(self, **change):
        reports = [loader.alter(**change) for loader in self.loaders]
        assert all(report == reports[0] for report in reports)
        by_name = {source.name: source for source in reports[0].sources}
        for name in self.weights:
            rows, own = self.rows(name), [row for row in self.received if name_of(row) == name]
            assert by_name[name].left == len(rows - set(own))
            assert by_name[name].delivered == len(rows & set(own))
        return reports[0]

    def state(self):
        states = [json.loads(json.dumps(loader.state_dict())) for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    def finish(self):
        """The rest of the epoch, and that each row of the result came once."""
        while self.step(1):
            pass
        assert len(self.received) == len(set(self.received)), "rows came twice"
        assert self.result() <= set(self.received), "rows are missing"

    def change(self):
        """Alter something at random; where that is refused, the loaders go on as they were."""
        before = (
            {key: list(value) for key, value in self.files.items()},
            {key: list(value) for key, value in self.filters.items()},
            dict(self.weights),
        )
        try:
            self.change_something()
        except tq.ConfigError as error:
            left = len(self.result() - set(self.received))
            if "cannot give each" not in str(error) or not 0 < left < len(self.loaders):
                raise
            self.files, self.filters, self.weights = before

    def change_something(self):
        dice, present = self.dice, list(self.weights)
        kind = dice.choice(["weights", "filters", "add", "drop", "append", "remove", "query"])
        name = dice.choice(present)
        absent = [each for each in FIRST if each not in present]
        if kind == "weights":
            self.weights = {each: dice.choice([1, 2, 5]) for each in present}
            self.alter(weights=self.weights)
        elif kind == "filters":
            condition = f"id % {dice.choice([5, 7, 11])} <> {dice.randrange(5)}"
            self.filters[name].append(condition)
            self.alter(filters={name: condition})
        elif kind == "add" and absent:
            self.weights[absent[0]] = 0.3
            self.alter(add={absent[0]: (self.query(absent[0]), 0.3)})
        elif kind == "drop" and len(present) > 1:
            del self.weights[name]
            self.alter(drop=name)
        elif kind == "append" and len(self.files[name]) < 6 and not self.removed(name):
            self.files[name] = [*self.files[name], self.write(name, len(self.files[name]))]
            self.alter(query=self.mixture())
        elif kind == "remove" and len(self.files[name]) > 1:
            self.files[name] = (
                self.files[name][:-1] if dice.random() < 0.5 else self.files[name][1:]
            )
            self.alter(query=self.mixture())
        elif kind == "query":
            # Wider again: rows that were left out before come now, and those that were delivered do not.
            self.filters[name] = self.filters[name][:-1]
            self.alter(query=self.mixture())

    def removed(self, name):
        """Whether files are gone, so that those which are added are not known to be others."""
        return [folder.name for folder in self.files[name]] != [
            str(number) for number in range(len(self.files[name]))
        ]


SHUFFLES = {
    "off": {},
    "on": {"shuffle": True, "shuffle_buffer_size": 20},
    "buffer only": {"shuffle_buffer_size": 33},
}


def chain(root, seed, shuffle, changes=5):
    """An epoch that is altered, and resumed on other topologies, in turns."""
    dice = random.Random(f"{seed} {shuffle}")
    world = World(root, dice, **SHUFFLES[shuffle])
    world.start()
    for _ in range(changes):
        if not world.step(dice.randrange(3)):
            break
        if dice.random() < 0.8:
            world.change()
        if dice.random() < 0.5:
            if not world.step(dice.randrange(2)):
                break
            world.start(world.state())
    world.finish()
    return world


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("seed", range(3))
def test_each_row_of_the_altered_result_comes_once(tmp_path, without_processes, shuffle, seed):
    chain(tmp_path, seed, shuffle)


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_many_chains_of_alterations_and_resumes(tmp_path, without_processes, shuffle):
    altered = 0
    for seed in range(100, 112 if LONG else 104):
        world = chain(tmp_path, seed, shuffle, changes=8)
        altered += len(world.state().get("altered", {}).get("log", []))
    assert altered > (30 if LONG else 10)


def opened(folder, sql="SELECT id FROM t", **options):
    """A loader over a table of ids."""
    session = tq.Session()
    session.register_parquet("t", folder)
    return stopping.loader_of(session.sql(sql), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(tmp_path_factory.mktemp("alter") / "t")


@pytest.mark.parametrize("transform_threads", [None, 2])
@pytest.mark.parametrize("filters", ["id % 3 = 0", "id < 100"])
def test_a_loop_goes_on_with_the_altered_query(folder, filters, transform_threads):
    loader = opened(folder, shuffle=True, transform=dict, transform_threads=transform_threads)
    received = []
    for step, batch in enumerate(loader, start=1):
        received.append(batch["id"])
        if step == 5:
            report = loader.alter(filters=filters)
    first, rest = support.flat(received[:5]), support.flat(received[5:])
    wanted = {
        row for row in range(stopping.ROWS) if (row % 3 == 0 if "%" in filters else row < 100)
    }
    assert sorted(rest) == sorted(wanted - set(first))
    assert all(len(batch) == 7 for batch in received[:-1])
    [source] = report.sources
    assert (report.epoch, report.step, report.left) == (0, 5, len(rest))
    assert (source.name, source.delivered, source.new) == ("0", len(wanted & set(first)), 0)
    assert json.loads(json.dumps(report.to_dict()))["sources"][0]["left"] == len(rest)
    assert repr(report).startswith("Alteration: filters from step 5 of epoch 0\n  0: ")
    # The next epoch delivers all of it.
    assert sorted(support.flat(stopping.ids(loader))) == sorted(wanted)


def test_a_step_to_come_is_waited_for(folder):
    plain = opened(folder, shuffle=True)
    now = []
    for step, batch in enumerate(plain, start=1):
        now.append(batch["id"])
        if step == 8:
            plain.alter(filters="id % 2 = 0")
    later = opened(folder, shuffle=True)
    assert later.alter(filters="id % 2 = 0", at_step=8) is None
    assert stopping.ids(later) == now
    # Two of them, in another order, and the second in the middle of the loop.
    both = opened(folder, shuffle=True)
    both.alter(filters="id % 2 = 0", at_step=10)
    found = []
    for batch in both:
        found.append(batch["id"])
        if len(found) == 2:
            both.alter(filters="id > 50", at_step=4)
    log = both.dataset._state.altered.log
    assert [(entry["step"], entry["change"]) for entry in log] == [(4, "filters"), (10, "filters")]
    assert len(support.flat(found)) == len(set(support.flat(found)))
    assert {row for row in range(51, stopping.ROWS) if row % 2 == 0} <= set(support.flat(found))


def test_a_step_that_is_past_or_never_comes_is_refused(folder):
    loader = opened(folder)
    running = iter(loader)
    for _ in range(3):
        next(running)
    with pytest.raises(
        tq.ConfigError,
        match="at_step=2 must be at least 3: so many batches of epoch 0 were received",
    ):
        loader.alter(filters="id > 5", at_step=2)
    with pytest.raises(
        tq.ConfigError, match=r"at_step=35 must be in 3\.\.35: epoch 0 has 35 steps"
    ):
        loader.alter(filters="id > 5", at_step=35)
    with pytest.raises(tq.ConfigError, match="at_step"):
        loader.alter(filters="id > 5", at_step=-1)
    assert loader.alter(filters="id > 5", at_step=3).step == 3
    assert len(list(running)) == 32


def test_after_the_last_batch_the_next_epoch_is_altered(folder):
    loader = opened(folder)
    found = []
    for batch in loader:
        found.append(batch["id"])
        if len(found) == len(loader):
            assert loader.alter(filters="id < 10").epoch == 1
    assert len(support.flat(found)) == stopping.ROWS
    assert sorted(support.flat(stopping.ids(loader))) == list(range(10))


def test_a_loop_that_was_left_goes_on_in_the_next_one(folder):
    loader = opened(folder, shuffle=True)
    first = support.flat(stopping.ids(itertools.islice(loader, 4)))
    loader.alter(filters="id % 2 = 0")
    rest = support.flat(stopping.ids(loader))
    assert sorted(rest) == [row for row in range(0, stopping.ROWS, 2) if row not in first]


def test_a_dataset_is_altered_between_its_iterations(folder):
    dataset = opened(folder, shuffle=True).dataset
    running = iter(dataset)
    first = support.flat(next(running)["id"] for _ in range(4))
    assert dataset.alter(filters="id % 2 = 0").step == 4
    with pytest.raises(tq.ConfigError, match="newer"):
        next(running)
    rest = support.flat(batch["id"] for batch in dataset)
    assert sorted(rest) == [row for row in range(0, stopping.ROWS, 2) if row not in first]


def test_a_dataset_whose_loader_is_in_a_loop_is_altered_by_the_loader(folder, without_processes):
    loader = opened(folder, num_workers=2)
    running = iter(loader)
    next(running)
    with pytest.raises(tq.ConfigError, match="call alter.. of the loader"):
        loader.dataset.alter(filters="id < 20")
    loader.alter(filters="id < 20")
    assert len(list(running)) <= 3
    # Without workers the loop says that it was left behind.
    loader = opened(folder)
    running = iter(loader)
    next(running)
    loader.dataset.alter(filters="id < 20")
    with pytest.raises(tq.ConfigError, match="newer"):
        next(running)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_go_on_with_the_altered_query(folder, persistent):
    for method in ("fork", "forkserver"):
        loader = opened(
            folder,
            shuffle=True,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context=method,
        )
        received = []
        for step, batch in enumerate(loader, start=1):
            received.append(batch["id"])
            if step == 5:
                loader.alter(filters="id % 3 = 0")
            if step == 9:
                state = json.loads(json.dumps(loader.state_dict()))
        rows = support.flat(received)
        assert len(rows) == len(set(rows))
        assert set(range(0, stopping.ROWS, 3)) <= set(rows)
        assert all(row % 3 == 0 for row in support.flat(received[5:]))
        assert sorted(support.flat(stopping.ids(loader))) == list(range(0, stopping.ROWS, 3))
        again = stopping.resumed(loader.dataset._plan.query, state, shuffle=True)
        assert sorted(support.flat(received[:9]) + support.flat(stopping.ids(again))) == sorted(
            rows
        )


@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, {"partitions": 4, "batch_size": 8}),
        (2, {"remainder": "drop"}),
        (3, {"remainder": "pad"}),
        (1, {"remainder": "uneven"}),
        (2, {"split_strategy": "round_robin"}),
    ],
)
def test_options_of_order_keep_their_rules(folder, world, options):
    wanted = {row for row in range(stopping.ROWS) if row % 3}
    found, steps = [], set()
    for rank in range(world):
        of_rank = {
            "rank": rank,
            "world_size": world,
            "shuffle": True,
            "shuffle_buffer_size": 30,
            **options,
        }
        loader = opened(folder, "SELECT id FROM t WHERE k <> 2", **of_rank)
        batches = []
        for step, batch in enumerate(loader, start=1):
            batches.append(batch["id"])
            if step == 4:
                loader.alter(loader_query(folder))
        steps.add(len(batches))
        found += support.flat(batches)
    first = {row for row in found if row % 3 == 0}
    assert len(steps) == 1
    missing, twice = wanted - set(found), len(found) - len(set(found))
    batch_rows = world * options.get("batch_size", 7)
    assert len(missing) < (batch_rows if options.get("remainder") == "drop" else 1)
    assert twice < (batch_rows if options.get("remainder") == "pad" else 1)
    assert len(first) < 4 * batch_rows


def loader_query(folder):
    """Another query over the same files, which has rows that the one before left out."""
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.sql("SELECT id FROM t WHERE id % 3 <> 0")


@pytest.mark.parametrize("world", [1, 2])
def test_an_epoch_ends_with_the_first_query_that_runs_out_under_the_new_weights(tmp_path, world):
    session = tq.Session()
    for name, start in (("a", 0), ("b", 10_000)):
        ids = pa.table({"id": np.arange(start, start + 200)})
        session.register_parquet(
            name, support.write_parquet(tmp_path / name, ids, files=2, row_group=20)
        )
    queries = {name: session.sql(f"SELECT id FROM {name}") for name in "ab"}
    before, after, states = [], [], []
    for rank in range(world):
        of_rank = {"rank": rank, "world_size": world, "batch_size": 20 // world, "shuffle": True}
        loader = stopping.loader_of(tq.mix(queries, weights=[0.8, 0.2]), **of_rank)
        running = iter(loader)
        before += [next(running)["id"] for _ in range(5)]
        loader.alter(weights={"a": 0.2, "b": 0.8})
        own = [batch["id"] for batch in itertools.islice(running, 2)]
        states.append(loader.state_dict())
        after += own + [batch["id"] for batch in running]
    # 80 and 20 rows, and then 180 rows of b at four fifths of a batch.
    assert [sum(row < 10_000 for row in batch) for batch in before] == [16 // world] * (5 * world)
    assert all(
        sum(row < 10_000 for row in batch) == 4 // world
        for batch in after
        if len(batch) == 20 // world
    )
    rows = support.flat(before + after)
    assert len(rows) == len(set(rows))
    assert abs(len(rows) - 100 - 180 / 0.8) <= 2
    # Another topology goes on to the same end, but for a row or so.
    rest = []
    for rank in range(3):
        again = stopping.loader_of(
            tq.mix(queries, weights=[0.8, 0.2]), rank=rank, world_size=3, batch_size=5
        )
        again.load_state_dict(states[0])
        rest += support.flat(stopping.ids(again))
    assert abs(len(rest) - (180 / 0.8 - 40)) <= 3
    assert len(rest) == len(set(rest))


@pytest.mark.slow
def test_workers_of_a_loader_of_ones_own_do_not_go_on_unaltered(folder):
    dataset = opened(folder).dataset
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 35
    dataset.alter(filters="id < 20")
    with pytest.raises(tq.ConfigError, match="this worker process, which lives on, does not know"):
        list(loader)
    found = DataLoader(dataset, batch_size=None, num_workers=1)
    assert sorted(row for batch in found for row in batch["id"]) == list(range(20))


def _of_group(rank, world_size, folder, wrong):
    """What a rank of a process group receives, with an alteration at the same step; the error where one does it otherwise."""
    torch.distributed.init_process_group("gloo")
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.sql("SELECT id FROM t WHERE id <> 3")
    loader, _ = tq.create_dataloader(query, batch_size=7, shuffle=True, output_format="dict")
    found, error = [], None
    step_of_change = 3 + (wrong == "step" and rank == 1)
    modulus = 3 + (wrong == "filters" and rank == 1)
    for step, batch in enumerate(loader, start=1):
        found += batch["id"]
        if step == step_of_change:
            try:
                loader.alter(filters=f"id % {modulus} = 0")
            except tq.ConfigError as refused:
                error = str(refused)
                break
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found, error


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["", "step", "filters"])
def test_ranks_of_a_group_alter_the_same_at_the_same_step(folder, wrong):
    answers = ranks.run(_of_group, 2, folder, wrong)
    rows = support.flat(found for found, _ in answers)
    assert len(rows) == len(set(rows))
    errors = [error for _, error in answers]
    if not wrong:
        assert errors == [None, None]
        assert {row for row in range(0, stopping.ROWS, 3) if row != 3} <= set(rows)
        return
    words = {
        "step": r"step \(3 on rank 0, 4 on rank 1\)",
        "filters": "change .*% 3.*on rank 0, .*% 4",
    }
    for error in errors:
        assert re.search(
            f"all ranks must agree on an alteration of the query; .*{words[wrong]}", error
        )
