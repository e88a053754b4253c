"""A query as a node of torchdata pipelines: every composition delivers each row of an epoch once, before and
after a resume, though prefetching nodes read ahead."""

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from torchdata.nodes import Loader, Mapper, MultiNodeWeightedSampler, ParallelMapper, Prefetcher

import support
import tensorquery as tq

ROWS, BATCH = 90, 7


@pytest.fixture(autouse=True)
def collected_here():
    """torchdata's Loader and its iterator refer to each other: collected on its own thread, a node that reads
    ahead would try to join that thread."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture
def session(tmp_path):
    session = tq.Session()
    for name, start in (("a", 0), ("b", 1000)):
        table = pa.table({"id": start + np.arange(ROWS if name == "a" else 40)})
        folder = support.write_parquet(tmp_path / name, table, files=2, row_group=13)
        session.register_parquet(name, folder)
    return session


def node(session, table="a", **options):
    options = {"batch_size": BATCH, "shuffle": True, "shuffle_buffer_size": 25, **options}
    loader, _ = tq.create_dataloader(table=table, session=session, rank=0, world_size=1, **options)
    return tq.QueryNode(loader)


def ids(batch):
    return list(map(int, batch["id"]))


PIPELINES = {
    "alone": lambda session: Mapper(node(session), ids),
    "prefetch": lambda session: Mapper(Prefetcher(node(session), prefetch_factor=4), ids),
    "rare snapshots": lambda session: Mapper(
        Prefetcher(node(session), prefetch_factor=4, snapshot_frequency=3), ids
    ),
    "threads": lambda session: ParallelMapper(node(session), ids, num_workers=2, method="thread"),
    "both": lambda session: Prefetcher(
        ParallelMapper(node(session), ids, num_workers=2, method="thread"), prefetch_factor=3
    ),
    "workers": lambda session: Mapper(
        Prefetcher(node(session, num_workers=2), prefetch_factor=2), ids
    ),
}


def taken(loader, count):
    """`count` items, and the state right after them, through JSON."""
    iterator = iter(loader)
    items = [next(iterator) for _ in range(count)]
    return items, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_epochs_through_a_pipeline(session, name):
    plain = [node(session)._loader, node(session, num_workers=2)._loader][name == "workers"]
    epochs = [support.ids_of(plain) for _ in range(2)]
    loader = Loader(PIPELINES[name](session))
    assert [list(loader), list(loader)] == epochs
    assert sorted(support.flat(epochs[0])) == list(range(ROWS))
    assert epochs[0] != epochs[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_stop_anywhere(session, name):
    whole = list(Loader(PIPELINES[name](session)))
    for stop in (0, 1, 4, len(whole) - 1):
        before, state = taken(Loader(PIPELINES[name](session)), stop)
        loader = Loader(PIPELINES[name](session))
        loader.load_state_dict(state)
        assert before + list(loader) == whole, stop


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alone", "prefetch", "both"])
def test_a_state_after_the_last_batch_starts_the_next_epoch(session, name):
    loader = Loader(PIPELINES[name](session))
    epochs = [list(loader), list(loader)]
    _, state = taken(Loader(PIPELINES[name](session)), len(epochs[0]))
    resumed = Loader(PIPELINES[name](session))
    resumed.load_state_dict(state)
    assert list(resumed) == epochs[1]
    finished = Loader(PIPELINES[name](session))
    list(finished)
    resumed = Loader(PIPELINES[name](session))
    resumed.load_state_dict(finished.state_dict())
    assert list(resumed) == epochs[1]


@pytest.mark.slow
def test_a_chain_of_stops(session):
    whole = list(Loader(PIPELINES["prefetch"](session)))
    found, state = taken(Loader(PIPELINES["prefetch"](session)), 2)
    for count in (0, 3, 1):
        loader = Loader(PIPELINES["prefetch"](session))
        loader.load_state_dict(state)
        items, state = taken(loader, count)
        found += items
    loader = Loader(PIPELINES["prefetch"](session))
    loader.load_state_dict(state)
    assert found + list(loader) == whole


@pytest.mark.slow
def test_after_a_break_the_epoch_begins_anew(session):
    loader = Loader(PIPELINES["prefetch"](session))
    whole = list(Loader(PIPELINES["prefetch"](session)))
    for _ in loader:
        break
    assert list(loader) == whole


# ------------------------------------------------------------------------------------------------
# Several queries through torchdata's sampler.


def mixture(session, stop):
    nodes = {
        "a": Mapper(node(session, "a"), ids),
        "b": Prefetcher(Mapper(node(session, "b"), ids), 2),
    }
    sampler = MultiNodeWeightedSampler(
        nodes, {"a": 0.6, "b": 0.4}, stop_criteria=stop, rank=0, world_size=1, seed=3
    )
    return Loader(Prefetcher(sampler, prefetch_factor=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    ["ALL_DATASETS_EXHAUSTED", "FIRST_DATASET_EXHAUSTED", "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"],
)
def test_a_mixture_resumes_exactly(session, stop):
    whole = list(mixture(session, stop))
    if stop == "ALL_DATASETS_EXHAUSTED":
        assert sorted(support.flat(whole)) == [*range(ROWS), *range(1000, 1040)]
    assert {item[0] >= 1000 for item in whole} == {False, True}
    # Also right after the last batch of one query while the other goes on: a second epoch of it must not begin.
    every = 1 if stop == "ALL_DATASETS_EXHAUSTED" else 3
    for stopped in range(0, len(whole), every):
        loader = mixture(session, stop)
        iterator = iter(loader)
        before = [next(iterator) for _ in range(stopped)]
        state = loader.state_dict()
        resumed = mixture(session, stop)
        resumed.load_state_dict(state)
        assert before + list(resumed) == whole, stopped


# ------------------------------------------------------------------------------------------------
# Errors.


@pytest.mark.slow
def test_only_our_loader_is_taken(session):
    with pytest.raises(tq.ConfigError, match="list"):
        tq.QueryNode([1, 2])


@pytest.mark.slow
def test_a_state_of_another_pipeline_is_refused(session):
    with pytest.raises(tq.CheckpointMismatchError, match="num_yielded"):
        node(session).reset({"num_yielded": 3})


@pytest.mark.slow
def test_a_state_of_another_query_is_refused(session):
    source = node(session)
    next(source)
    with pytest.raises(tq.CheckpointMismatchError):
        node(session, "b").reset(source.state_dict())


@pytest.mark.slow
def test_the_node_is_listed():
    assert "QueryNode" in dir(tq)
    assert tq.QueryNode.__module__ == "tensorquery.integrations.nodes"


WITHOUT = """
import inspect, sys
missing = sys.argv[1]
sys.modules[missing] = None  # an import of it fails
import tensorquery as tq
if missing == "torchdata":
    from tensorquery import *
    assert create_dataloader and QueryTrainerMixin
    assert inspect.getmembers(tq)
for name in sys.argv[2:]:
    try:
        getattr(tq, name)
    except ImportError as error:
        assert f"pip install {missing}" in str(error), error
    else:
        raise SystemExit(f"{name} was imported")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("torchdata", ["QueryNode"]),
        ("torch", ["QueryNode", "QueryTrainerMixin", "QueryDataLoader"]),
    ],
)
def test_an_absent_package_is_named(missing, names):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT, missing, *names]
    subprocess.run(command, check=True, env=environment)
