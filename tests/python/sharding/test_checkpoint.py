"""Promise 5 (docs/promises.md): stop anywhere, and the rows before plus the rows after are the epoch exactly; bit-identical on the
same topology, each row once on another, also over chains of stops. States count what the loop has received."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq
from effort import LONG, cases
from stopping import SHUFFLES, ids, loader_of, query_of, resumed, state_of, take

# Not about the machine that runs the tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FILTERS = [None, "id % 100 = 3", "id % 2 = 0", "id < 0", "id > 33"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(tmp_path_factory.mktemp("checkpoint") / "t")


@pytest.fixture
def query(folder):
    """Filtered, so that nobody knows the number of rows."""
    return query_of(folder, "k <> 2")


@pytest.fixture
def without_processes(monkeypatch):
    """Worker shards are read in this process, so that many examples take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)


def rows_of(query):
    return Counter(query.to_arrow()["id"].to_pylist())


# ------------------------------------------------------------------------------------------------
# Any stop, any chain of topologies.

topologies = st.tuples(st.integers(1, 6), st.integers(0, 3), st.sampled_from([1, 2, 3, 7, 16]))


def at(topology, rank=0, **options):
    """The options of one rank of a topology."""
    world_size, workers, batch_size = topology
    return {
        "rank": rank,
        "world_size": world_size,
        "num_workers": workers,
        "batch_size": batch_size,
        **options,
    }


def opened(query, state, **options):
    return loader_of(query, **options) if state is None else resumed(query, state, **options)


@pytest.mark.slow
@settings(max_examples=cases(50))
@given(
    where=st.sampled_from(FILTERS),
    shuffle=st.sampled_from(list(SHUFFLES)),
    chain=st.lists(st.tuples(topologies, st.integers(0, 9)), min_size=2, max_size=5),
    pick=st.integers(0, 5),
)
def test_a_chain_of_stops_on_any_topologies(folder, without_processes, where, shuffle, chain, pick):
    """Equal steps: any rank's state is everybody's, and each row is delivered once over the whole chain."""
    query = query_of(folder, where)
    wanted, received = rows_of(query), Counter()
    state, before = None, None
    # The last run goes to the end.
    for (topology, _), stop in zip(chain, [*(stop for _, stop in chain[:-1]), None], strict=True):
        left = (wanted - received).total()
        if not stopping.possible(wanted.total(), topology[0], topology[2]):
            # Refused for the epochs to come, where their rows are known: see test_equal_ranks.
            continue
        if topology != before and not stopping.possible(left, topology[0], topology[2]):
            with pytest.raises(
                tq.ConfigError, match=rf"{left} rows \(N\).*{topology[0]} ranks \(W\)"
            ):
                list(opened(query, state, **at(topology), **SHUFFLES[shuffle]))
            continue
        states = []
        for rank in range(topology[0]):
            loader = opened(query, state, **at(topology, rank), **SHUFFLES[shuffle])
            iterator = iter(loader)
            for batch in itertools.islice(iterator, stop):
                received.update(batch["id"])
            states.append(state_of(loader))
        if topology[0] > 1:
            assert all(one == states[0] for one in states)
        assert not received - wanted
        state, before = states[pick % len(states)], topology
        if state["epoch"] == 1 or stop is None:
            assert received == wanted
            assert state["epoch"] == 1
            break


@pytest.mark.slow
@settings(max_examples=cases(17))
@given(
    where=st.sampled_from(FILTERS),
    shuffle=st.sampled_from(["off", "on", "buffer only"]),
    chain=st.lists(
        st.tuples(topologies, st.lists(st.integers(0, 9), min_size=6, max_size=6)),
        min_size=2,
        max_size=4,
    ),
)
def test_a_chain_of_uneven_stops(folder, without_processes, where, shuffle, chain):
    """Without equal steps each rank stops where it likes; the merged states are enough for any topology."""
    query = query_of(folder, where)
    options = {"remainder": "uneven", **SHUFFLES[shuffle]}
    wanted, received, state = rows_of(query), Counter(), None
    for topology, stops in chain[:-1]:
        states, delivered = [], Counter()
        for rank in range(topology[0]):
            loader = opened(query, state, **at(topology, rank), **options)
            iterator = iter(loader)
            for batch in itertools.islice(iterator, stops[rank]):
                delivered.update(batch["id"])
            states.append(state_of(loader))
        if len({state["epoch"] for state in states}) > 1:
            # Some ranks are through: test_merging_states_of_ranks_that_are_through.
            continue
        received += delivered
        assert not received - wanted
        state = tq.merge_state_dicts(states)
        if state["epoch"] == 1:
            break
    if state is None or state["epoch"] == 0:
        topology = chain[-1][0]
        for rank in range(topology[0]):
            for batch in opened(query, state, **at(topology, rank), **options):
                received.update(batch["id"])
    assert received == wanted


@pytest.mark.slow
@settings(max_examples=cases(17))
@given(
    where=st.sampled_from([None, "id % 2 = 0", "id > 33"]),
    shuffle=st.sampled_from(list(SHUFFLES)),
    remainder=st.sampled_from(["drop", "pad"]),
    chain=st.lists(st.tuples(topologies, st.integers(0, 5)), min_size=2, max_size=4),
)
def test_a_chain_of_stops_with_other_remainders(
    folder, without_processes, where, shuffle, remainder, chain
):
    """ "drop" and "pad" leave out and repeat at the end of the epoch only, however often it was stopped."""
    query = query_of(folder, where)
    options = {"remainder": remainder, **SHUFFLES[shuffle]}
    wanted, received, state = rows_of(query), Counter(), None
    for (topology, _), stop in zip(chain, [*(stop for _, stop in chain[:-1]), None], strict=True):
        states = []
        for rank in range(topology[0]):
            loader = opened(query, state, **at(topology, rank), **options)
            iterator = iter(loader)
            for batch in itertools.islice(iterator, stop):
                received.update(batch["id"])
            states.append(state_of(loader))
        state = states[-1]
        if state["epoch"] == 1:
            break
        if remainder == "drop":
            assert not received - wanted
    world_size, _, batch_size = topology
    if remainder == "drop":
        assert not received - wanted
        assert (wanted - received).total() < world_size * batch_size
    else:
        assert not wanted - received
        assert set(received) <= set(wanted)
        assert (received - wanted).total() <= world_size * batch_size


@pytest.mark.slow
@settings(max_examples=cases(17))
@given(
    where=st.sampled_from(FILTERS),
    shuffle=st.sampled_from(list(SHUFFLES)),
    topology=topologies,
    remainder=st.sampled_from(["even", "drop", "pad", "uneven"]),
    stops=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    epoch=st.integers(0, 2),
)
def test_the_same_topology_goes_on_bit_by_bit(
    folder, without_processes, where, shuffle, topology, remainder, stops, epoch
):
    query = query_of(folder, where)
    if remainder == "even" and not stopping.possible(
        rows_of(query).total(), topology[0], topology[2]
    ):
        remainder = "pad"
    options = {"remainder": remainder, **SHUFFLES[shuffle]}
    for rank in {0, topology[0] - 1}:
        loader = loader_of(query, **at(topology, rank), **options)
        loader.set_epoch(epoch)
        whole = ids(loader)
        loader = loader_of(query, **at(topology, rank), **options)
        loader.set_epoch(epoch)
        found = []
        for stop in stops:
            batches, state = take(loader, stop)
            found += batches
            assert found == whole[: len(found)]
            if state["epoch"] > epoch:
                break
            loader = resumed(query, state, **at(topology, rank), **options)
        if state["epoch"] == epoch:
            found += ids(loader)
        assert found == whole


@pytest.mark.slow
def test_every_stop_of_an_epoch(folder, without_processes):
    """Every single step, on the way to every other topology."""
    query = query_of(folder, "k <> 2")
    wanted = rows_of(query)
    for here, there in itertools.permutations([(1, 0, 7), (2, 0, 7), (3, 2, 5), (2, 3, 16)], 2):
        for stop in range(1, 30, 2 if LONG else 6):
            found, state = Counter(), None
            for rank in range(here[0]):
                batches, state = take(loader_of(query, **at(here, rank), **SHUFFLES["on"]), stop)
                found.update(support.flat(batches))
            left = (wanted - found).total()
            if state["epoch"] == 1 or not stopping.possible(left, there[0], there[2]):
                continue
            for rank in range(there[0]):
                found.update(
                    support.flat(ids(resumed(query, state, **at(there, rank), **SHUFFLES["on"])))
                )
            assert found == wanted, (here, there, stop)


# ------------------------------------------------------------------------------------------------
# Real worker processes.


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", ["off", "on", "global"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_workers_count_what_was_received(query, shuffle, world_size):
    """Ranks read ahead as far as they may, and no state has any of it; one rank has counted rows, one has not."""
    options = {"num_workers": 2, "world_size": world_size, **SHUFFLES[shuffle]}
    whole = ids(loader_of(query, prefetch_factor=8, **options))
    for stop in (1, 4):
        before, state = take(loader_of(query, prefetch_factor=8, **options), stop)
        assert before == whole[:stop]
        assert state["step"] == stop
        assert ids(resumed(query, state, **options)) == whole[stop:]


@pytest.mark.slow
def test_workers_in_a_chain_of_stops(query):
    """torch begins with worker 0 after every resume, wherever the epoch stands."""
    for workers, world_size in ((2, 2), (3, 1)):
        options = {"num_workers": workers, "world_size": world_size, **SHUFFLES["on"]}
        whole = ids(loader_of(query, **options))
        found, state = take(loader_of(query, **options), 1)
        for stop in (1, 2):
            batches, state = take(resumed(query, state, **options), stop)
            found += batches
        assert found + ids(resumed(query, state, **options)) == whole


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ((2, 2, 7), (2, 0, 7)),
        ((1, 0, 7), (2, 2, 5)),
        ((2, 2, 7), (1, 3, 16)),
        ((1, 2, 7), (1, 3, 7)),
    ],
)
@pytest.mark.slow
def test_other_numbers_of_workers(query, here, there):
    received = []
    for rank in range(here[0]):
        batches, state = take(loader_of(query, **at(here, rank), **SHUFFLES["on"]), 4)
        received += support.flat(batches)
    for rank in range(there[0]):
        loader = resumed(query, state, **at(there, rank), **SHUFFLES["on"])
        received += support.flat(ids(loader))
    assert Counter(received) == rows_of(query)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_uneven_ranks_merge(query, workers):
    options = {"world_size": 2, "num_workers": workers, "remainder": "uneven", **SHUFFLES["on"]}
    received, states = [], []
    for rank, stop in enumerate((5, 2)):
        batches, state = take(loader_of(query, rank=rank, **options), stop)
        received += support.flat(batches)
        states.append(state)
    # A state of its own is enough for a rank that goes on as before.
    whole = ids(loader_of(query, **options))
    assert ids(resumed(query, states[0], **options)) == whole[5:]
    merged = tq.merge_state_dicts(reversed(states))
    assert ids(resumed(query, merged, **options)) == whole[5:]
    for rank in range(3):
        loader = resumed(query, merged, **{**options, "world_size": 3, "rank": rank})
        received += support.flat(ids(loader))
    assert Counter(received) == rows_of(query)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize(("world_size", "workers"), [(2, 0), (3, 0), (3, 2)])
def test_merging_states_of_resumed_ranks_of_which_some_have_not_begun(
    query, world_size, workers, begun
):
    options = {"remainder": "uneven", **SHUFFLES["on"]}
    received, states = [], []
    for rank, stop in enumerate((5, 2)):
        batches, state = take(loader_of(query, rank=rank, world_size=2, **options), stop)
        received += support.flat(batches)
        states.append(state)
    merged = tq.merge_state_dicts(states)
    states = []
    for rank in range(world_size):
        here = {"rank": rank, "world_size": world_size, "num_workers": workers, **options}
        loader = resumed(query, merged, **here)
        if rank in begun:
            batches, state = take(loader, 2)
            received += support.flat(batches)
            states.append(state)
        else:
            states.append(loader.state_dict())
    merged = tq.merge_state_dicts(reversed(states))
    for rank in range(3):
        loader = resumed(query, merged, rank=rank, world_size=3, **options)
        received += support.flat(ids(loader))
    assert Counter(received) == rows_of(query)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_merging_states_of_ranks_that_are_through(query, workers):
    """Uneven ranks do not end at the same step: a checkpoint near the end holds ranks that have delivered all."""
    options = {"world_size": 2, "num_workers": workers, "remainder": "uneven", **SHUFFLES["on"]}
    received, states = [], []
    for rank, stop in enumerate((None, 2)):
        loader = loader_of(query, rank=rank, **options)
        iterator = iter(loader)
        received += support.flat(ids(itertools.islice(iterator, stop)))
        states.append(state_of(loader))
    assert [state["epoch"] for state in states] == [1, 0]
    merged = tq.merge_state_dicts(states)
    assert merged["epoch"] == 0
    for rank in range(3):
        loader = resumed(query, merged, **{**options, "world_size": 3, "rank": rank})
        received += support.flat(ids(loader))
    assert Counter(received) == rows_of(query)


def test_uneven_needs_the_states_of_all_ranks_for_another_topology(query):
    options = {"remainder": "uneven", "world_size": 2}
    states = [take(loader_of(query, rank=rank, **options), 3)[1] for rank in range(2)]
    with pytest.raises(tq.CheckpointMismatchError, match="merge_state_dicts"):
        list(resumed(query, states[0], remainder="uneven", world_size=3))
    with pytest.raises(tq.CheckpointMismatchError, match=r"ranks \[1\] are missing"):
        tq.merge_state_dicts(states[:1])
    with pytest.raises(tq.CheckpointMismatchError, match="no state to merge"):
        tq.merge_state_dicts([])
    _, later = take(loader_of(query, rank=1, **options), 4)
    with pytest.raises(tq.CheckpointMismatchError, match="rank 1 is there twice"):
        tq.merge_state_dicts([*states, later])
    _, other = take(loader_of(query, rank=1, shuffle_seed=7, **options), 3)
    with pytest.raises(tq.CheckpointMismatchError, match="differ in seed"):
        tq.merge_state_dicts([states[0], other])


def test_merging_equal_states_is_accepted(query):
    states = [take(loader_of(query, rank=rank, world_size=2), 3)[1] for rank in range(2)]
    assert states[0] == states[1] == tq.merge_state_dicts(states)
    _, later = take(loader_of(query, rank=1, world_size=2), 4)
    with pytest.raises(tq.CheckpointMismatchError, match=r"different steps \(3 and 4\)"):
        tq.merge_state_dicts([states[0], later])


def test_a_state_says_what_was_left_when_its_run_began(query):
    state, lefts, sizes = None, [], [(2, 0, 7), (3, 0, 5), (1, 0, 4)]
    for topology in sizes:
        _, state = take(opened(query, state, **at(topology)), 2)
        lefts.append(state["left"])
        layout = state["layout"]
        assert (layout["world_size"], layout["num_workers"], layout["batch_size"]) == topology
    assert lefts[0] is None
    assert len({left["rows"] for left in lefts[1:]}) == 2
    # Going on with the same topology changes nothing of it.
    _, later = take(opened(query, state, **at(sizes[-1])), 2)
    assert later["left"] == state["left"]
    assert later["step"] == 4


# ------------------------------------------------------------------------------------------------
# Epochs.


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("remainder", ["even", "uneven"])
def test_a_state_at_the_end_starts_the_next_epoch(query, workers, world_size, remainder):
    """Also before StopIteration: the epoch ends with its last batch."""
    options = {
        "num_workers": workers,
        "world_size": world_size,
        "remainder": remainder,
        **SHUFFLES["on"],
    }
    loader = loader_of(query, **options)
    epochs = [ids(loader), ids(loader)]
    assert epochs[0] != epochs[1]
    assert (loader.dataset.epoch, loader.state_dict()["epoch"]) == (2, 2)
    loader = loader_of(query, **options)
    found, early = take(loader, len(epochs[0]))
    assert found == epochs[0]
    assert (early["epoch"], early["step"], early["left"]) == (1, 0, None)
    list(loader_of(query, **options))
    loader = loader_of(query, **options)
    assert ids(loader) == epochs[0]
    late = state_of(loader)
    assert late == early
    loader = resumed(query, early, **options)
    assert loader.dataset.epoch == 1
    assert ids(loader) == epochs[1]
    assert loader.dataset.epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_resume_the_next_epoch_is_whole(query, workers):
    """The second epoch of a resumed run equals the second epoch of a run that never stopped."""
    options = {"num_workers": workers, "world_size": 2, **SHUFFLES["on"]}
    loader = loader_of(query, **options)
    epochs = [ids(loader) for _ in range(2)]
    _, state = take(loader_of(query, **{**options, "world_size": 3}), 3)
    loader = resumed(query, state, **options)
    list(loader)
    assert ids(loader) == epochs[1]
    assert loader.state_dict()["left"] is None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_break_starts_anew_and_a_loaded_state_goes_on(query, workers):
    options = {"num_workers": workers, **SHUFFLES["on"]}
    loader = loader_of(query, **options)
    whole = ids(loader)
    loader.set_epoch(0)
    before, state = take(loader, 3)
    assert ids(loader) == whole
    assert before == whole[:3]
    # A state is used once: the iteration after it is the next epoch, and a break starts that one anew.
    loader.load_state_dict(state)
    assert loader.dataset.epoch == 0
    assert ids(loader) == whole[3:]
    following, _ = take(loader, 2)
    assert ids(loader)[:2] == following != whole[:2]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_right_at_every_moment(query, workers):
    options = {"num_workers": workers, "world_size": 2, **SHUFFLES["on"]}
    whole = ids(loader_of(query, **options))
    loader = loader_of(query, **options)
    assert state_of(loader)["step"] == 0  # before iter()
    iterator = iter(loader)
    assert state_of(loader)["step"] == 0  # before the first batch
    next(iterator)
    state = loader.state_dict()
    next(iterator)
    assert state["step"] == 1  # what was taken does not change
    state = state_of(loader)
    loader = resumed(query, state, **options)
    assert state_of(loader) == state  # loaded, and not begun
    iterator = iter(loader)
    assert state_of(loader)["step"] == 2  # begun, and nothing received
    assert ids(iterator) == whole[2:]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_iterator_closes_the_first(query, workers):
    loader = loader_of(query, num_workers=workers)
    whole = ids(loader)
    loader.set_epoch(0)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(tq.ConfigError, match="closed, because a newer one was started"):
        next(first)
    assert ids(second) == whole
    with pytest.raises(tq.ConfigError, match="make a second loader for a loop inside a loop"):
        list(zip(loader, loader, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_loading_a_state_closes_the_iterator(query, workers):
    options = {"num_workers": workers, **SHUFFLES["on"]}
    whole = ids(loader_of(query, **options))
    loader = loader_of(query, **options)
    iterator = iter(loader)
    ids(itertools.islice(iterator, 2))
    state = state_of(loader)
    next(iterator)
    loader.load_state_dict(state)
    with pytest.raises(tq.ConfigError, match="closed, because a state was loaded"):
        next(iterator)
    assert ids(loader) == whole[2:]


@pytest.mark.slow
def test_persistent_workers_follow_epochs_and_states(query):
    options = {"num_workers": 2, "persistent_workers": True, "world_size": 2, **SHUFFLES["on"]}
    loader = loader_of(query, **options)
    epochs = [ids(loader) for _ in range(3)]
    _, state = take(loader_of(query, **{**options, "persistent_workers": False}), 3)
    loader.load_state_dict(state)
    assert ids(loader) == epochs[0][3:]
    assert ids(loader) == epochs[1]
    loader.set_epoch(0)
    assert ids(loader) == epochs[0]
    loader.set_epoch(2)
    assert ids(loader) == epochs[2]
    # A break in an epoch that was resumed: the workers that live on start the whole epoch.
    loader.load_state_dict(state)
    assert take(loader, 2)[0] == epochs[0][3:5]
    assert ids(loader) == epochs[0]


def test_the_dataset_itself_stops_and_goes_on(query):
    options = {"batch_size": 7, "split_rows": 9, "output_format": "dict", **SHUFFLES["on"]}

    def make():
        return tq.QueryDataset(query, rank=0, world_size=1, **options)

    whole = ids(make())
    dataset = make()
    before = ids(itertools.islice(iter(dataset), 4))
    state = dataset.state_dict()
    dataset = make()
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    assert before + ids(dataset) == whole
    assert dataset.epoch == 1
    # A loader resumes from the dataset's state alike.
    assert ids(resumed(query, state, **SHUFFLES["on"])) == whole[4:]


class FailsOnce:
    """Fails on the third batch, the first time."""

    def __init__(self):
        self.calls = 0

    def __call__(self, batch):
        self.calls += 1
        if self.calls == 3:
            raise ZeroDivisionError
        return batch


@pytest.mark.parametrize("where", ["transform", "collate_fn"])
def test_a_batch_on_which_a_function_fails_was_not_received(query, where):
    whole = ids(loader_of(query))
    loader = loader_of(query, **{where: FailsOnce()})
    received = []
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            received.append(batch["id"])
    state = state_of(loader)
    assert state["step"] == len(received) == 2
    assert received + ids(resumed(query, state)) == whole
