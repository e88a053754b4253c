"""Between two iterations, and while one runs: what `set_epoch`, a loaded state, `refresh` and a newer iterator change.

Promise 5: a state says what was received, whatever was set meanwhile. Promise 8: an iterator that is over says so.
"""

import itertools

import pytest

import stopping
import tensorquery as tq
from stopping import SHUFFLES, ids, loader_of, query_of, resumed, state_of, take

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


def test_the_same_epoch_set_at_its_end_comes_once_more(query, options):
    whole = whole_of(query, 0, **options)
    loader = loader_of(query, **options)
    iterator = iter(loader)
    ids(itertools.islice(iterator, len(whole)))
    loader.set_epoch(0)
    assert next(iterator, None) is None
    assert place(loader) == (0, 0)
    assert ids(loader) == whole


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
