"""Promises 1, 2, 3 and 5 (docs/promises.md): Iceberg tables with deletes of every kind give each row once, in equal steps. Stops lose
and repeat nothing, for any topology. The judge is Spark's reading of the rows."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import iceberg_fixtures as fixtures
import stopping
import tensorquery as tq
from effort import cases
from stopping import SHUFFLES

# Not about the machine that runs the tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:the data is sorted by"),
]

TABLES = [
    "mor_v2",
    "dv_v3",
    "dv_upgraded",
    "eq_keys",
    "eq_evolved",
    "orc_v2",
    "imported",
    "evolution",
]
FILTERS = [None, "id % 7 = 3", "id > 150", "id IS NULL"]


@pytest.fixture(scope="module")
def sessions():
    made = {}
    for name in TABLES:
        made[name] = tq.Session()
        made[name].register_iceberg_table("t", fixtures.open_fixture(name))
        made[name].register_table("plain", fixtures.truth(name))
    return made


@pytest.fixture
def without_processes(monkeypatch):
    """Worker shards are read in this process, so that many examples take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)


def query_and_ids(session, where):
    """The query over the table, and the ids that it must give."""
    clause = f" WHERE {where}" if where else ""
    truth = session.sql("SELECT id FROM plain" + clause).to_arrow()["id"].to_pylist()
    return session.sql("SELECT id FROM t" + clause), Counter(truth)


topologies = st.tuples(st.integers(1, 5), st.integers(0, 2), st.sampled_from([1, 2, 7, 32]))


def at(topology, rank, **options):
    world_size, workers, batch_size = topology
    return {
        "rank": rank,
        "world_size": world_size,
        "num_workers": workers,
        "batch_size": batch_size,
        **options,
    }


@pytest.mark.slow
@settings(max_examples=cases(20))
@given(
    name=st.sampled_from(TABLES),
    where=st.sampled_from(FILTERS),
    shuffle=st.sampled_from(list(SHUFFLES)),
    topology=topologies,
    split_rows=st.sampled_from([9, 25, 100000]),
)
def test_each_row_once_in_equal_steps(
    sessions, without_processes, name, where, shuffle, topology, split_rows
):
    query, wanted = query_and_ids(sessions[name], where)
    world_size, workers, batch_size = topology
    if not stopping.possible(wanted.total(), world_size, batch_size):
        return
    received, steps = Counter(), set()
    for rank in range(world_size):
        options = at(topology, rank, split_rows=split_rows, **SHUFFLES[shuffle])
        loader = stopping.loader_of(query, **options)
        batches = stopping.ids(loader)
        assert len(batches) == len(loader)
        steps.add(len(batches))
        for batch in batches:
            received.update(batch)
    assert received == wanted
    least = math.ceil(math.ceil(wanted.total() / world_size) / batch_size)
    # One rank with a filter does not count, so each of its workers may have a short last batch.
    most = least + max(0, workers - 1) if world_size == 1 and where else least
    assert len(steps) == 1
    assert least <= steps.pop() <= most


@pytest.mark.slow
@settings(max_examples=cases(14))
@given(
    name=st.sampled_from(TABLES),
    where=st.sampled_from(FILTERS[:3]),
    shuffle=st.sampled_from(list(SHUFFLES)),
    chain=st.lists(st.tuples(topologies, st.integers(0, 9)), min_size=2, max_size=4),
    pick=st.integers(0, 5),
)
def test_a_chain_of_stops_on_any_topologies(
    sessions, without_processes, name, where, shuffle, chain, pick
):
    query, wanted = query_and_ids(sessions[name], where)
    received, state = Counter(), None
    # The last run goes to the end.
    for (topology, _), stop in zip(chain, [*(stop for _, stop in chain[:-1]), None], strict=True):
        left = (wanted - received).total()
        world_size, _, batch_size = topology
        if not all(stopping.possible(n, world_size, batch_size) for n in (wanted.total(), left)):
            # Refused, see test_checkpoint; the chain is over, unless it goes on elsewhere.
            if stop is None:
                return
            continue
        states = []
        for rank in range(world_size):
            options = at(topology, rank, **SHUFFLES[shuffle])
            if state is None:
                loader = stopping.loader_of(query, **options)
            else:
                loader = stopping.resumed(query, state, **options)
            batches, after = stopping.take(loader, stop)
            for batch in batches:
                received.update(batch)
            states.append(after)
        state = states[pick % world_size]
        assert not received - wanted
        if state["epoch"] == 1:
            break
    assert received == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mor_v2", "dv_v3", "eq_keys", "orc_v2"])
def test_worker_processes_read_the_same_snapshot(name):
    """Real processes: each plans from the data that it is sent, not from the metadata file's newest snapshot."""
    session = tq.Session()
    version = next(iter(fixtures.versions(name)))
    snapshot = fixtures.versions(name)[version]["snapshot_id"]
    session.register_iceberg_table("t", fixtures.open_fixture(name), snapshot_id=snapshot)
    loader = stopping.loader_of(session.sql("SELECT id FROM t"), num_workers=2)
    received = Counter(one for batch in stopping.ids(loader) for one in batch)
    assert received == Counter(fixtures.truth(name, version)["id"].to_pylist())
