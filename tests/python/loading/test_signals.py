"""Promise 5 (docs/promises.md): an exception of a signal's handler, at whatever instant, leaves a state that says what the loop received."""

import os
import signal
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pytest

import tensorquery as tq
from effort import LONG
from strikes import BATCH, struck, struck_epochs

pytestmark = [
    # A signal that is heard in a finaliser is printed, and goes no further: Python says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(1800 if LONG else 300),
]

ROWS = 20_000


@pytest.fixture(scope="module")
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"x": list(range(ROWS))}))
    session.register_table("small", pa.table({"x": list(range(ROWS // 10))}))
    return session


def _twice(batch):
    return {"x": batch["x"] + 0}


def _same(batch):
    return batch


THREADS = {
    "numpy": {"output_format": "numpy"},
    "torch": {},
    "transform": {"transform": _twice},
    "threads": {"transform": _twice, "transform_threads": 2},
    "collate": {"output_format": "numpy", "collate_fn": _same},
    "window": {"shuffle": True, "shuffle_buffer_size": 100, "output_format": "numpy"},
    "global": {"shuffle": "global", "output_format": "numpy"},
    "uneven": {"remainder": "uneven", "output_format": "numpy"},
    "bar": {"show_progress": True, "output_format": "numpy"},
}
"""Options by the way in which batches are delivered in the training process."""


def made(session, table="t", **options):
    loader, _ = tq.create_dataloader(
        f"SELECT x FROM {table}", session=session, batch_size=BATCH, rank=0, world_size=1, **options
    )
    return loader, loader


def check(make, strikes, longest, **others):
    came, wrong = struck_epochs(make, strikes * 20 if LONG else strikes, longest, **others)
    assert came >= strikes
    assert wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", THREADS)
def test_an_exception_of_a_signal_leaves_a_state_of_what_was_received(session, form):
    check(lambda: made(session, **THREADS[form]), 60, 0.004)


@pytest.mark.slow
def test_of_a_dataset_without_a_loader(session):
    def make():
        dataset = made(session, output_format="numpy")[0].dataset
        return dataset, dataset

    check(make, 60, 0.004)


class _Enumerated:
    """A loader that is counted, as loops do."""

    def __init__(self, loader):
        self._loader = loader

    def __iter__(self):
        return map(itemgetter(1), enumerate(self._loader))


def _enumerated(loader):
    return _Enumerated(loader), loader


def _under_tqdm(loader):
    return pytest.importorskip("tqdm").tqdm(loader, disable=True), loader


def _prepared(loader):
    return pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(loader), loader


def _as_node(loader):
    pytest.importorskip("torchdata.nodes")
    node = tq.QueryNode(loader)
    return node, _Node(node)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [_enumerated, _under_tqdm, _prepared, _as_node])
def test_through_what_is_put_around_a_loader(session, wrap):
    check(lambda: wrap(made(session)[0]), 60, 0.004)


class _Node:
    """A node, by the names of a loader."""

    def __init__(self, node):
        self.state_dict, self.load_state_dict = node.state_dict, node.reset


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"assignment": "dynamic", "remainder": "uneven", "split_rows": 100},
        {"remainder": "uneven", "in_order": False, "split_rows": 100},
        {"persistent_workers": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_with_worker_processes(session, options):
    make = lambda: made(  # noqa: E731
        session,
        "small",
        num_workers=2,
        multiprocessing_context="fork",
        output_format="numpy",
        **options,
    )
    check(make, 6, 0.03, starts=False)


def test_an_iterator_that_was_interrupted_says_so_once_and_then_is_over(session):
    """Nothing goes on as if the epoch had ended."""
    loader, _ = made(session, transform=lambda batch: os.kill(os.getpid(), signal.SIGALRM) or batch)
    batches = iter(loader)
    assert struck(60, lambda: next(batches))
    with pytest.raises(tq.errors.ConfigError, match=r"was ended by Strike.*state_dict"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)
    again, _ = made(session)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again))["x"].tolist() == list(range(BATCH))


def test_an_exception_in_the_loop_leaves_the_iterator_as_it_is(session):
    loader, _ = made(session, output_format="numpy")
    batches, received = iter(loader), []
    for batch in batches:
        received.append(batch["x"])
        assert struck(60, lambda: os.kill(os.getpid(), signal.SIGALRM))
    assert np.concatenate(received).tolist() == list(range(ROWS))


def test_the_last_batch_counts_with_the_end_of_its_epoch(session):
    loader, dataset = tq.create_dataloader(
        "SELECT x FROM t", session=session, batch_size=ROWS // 2, rank=0, world_size=1
    )
    batches = iter(loader)
    next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 1)
    next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 0)
    assert dataset.epoch == 1
    dataset.set_epoch(0)
    assert next(batches, None) is None
    assert loader.state_dict()["epoch"] == 0
