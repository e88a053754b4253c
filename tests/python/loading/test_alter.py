"""Promises 1, 2, 4 and 5 (docs/promises.md): a query that is altered in the middle of an epoch delivers each row of the altered
result that was not delivered yet once, on any topology, before and after resumes; the next epoch delivers all of it."""

import itertools
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq

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
        return True

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
            assert "equal steps" in str(error) or "cannot give each" in str(error), error
            assert 0 < left < len(self.loaders)
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
            world.step(dice.randrange(2))
            state = world.state()
            if state["epoch"]:
                return world
            world.start(state)
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
    for seed in range(100, 140):
        world = chain(tmp_path, seed, shuffle, changes=8)
        altered += len(world.state().get("altered", {}).get("log", []))
    assert altered > 100
