"""Promise 8 (docs/promises.md): no worker falls silent. Errors and batches that no queue can send, forks, copies of loaders,
other loaders over the same dataset, and dead workers: a loop that does not get all rows gets an error."""

import contextlib
import copy
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue

import psutil
import pytest
from torch.utils.data import DataLoader, IterableDataset

import stopping
import support
import tensorquery as tq
from effort import METHODS
from stopping import ids, loader_of, query_of, resumed, state_of
from tensorquery.loading.workers import liveness
from tensorquery.loading.workers.batch_runs import BatchRuns

# Not about the machine that runs the tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(tmp_path_factory.mktemp("silent") / "t")


@pytest.fixture(scope="module")
def query(folder):
    return query_of(folder)


def fails_late(batch):
    """Raises what no other process can know."""
    if max(batch["id"]) > 100:
        raise type("NoSuchKey", (Exception,), {})("it is gone")
    return batch


def cannot_be_sent(batch):
    return (lambda: batch) if max(batch["id"]) > 100 else batch


# ------------------------------------------------------------------------------------------------
# Batches that cannot be sent.


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"remainder": "uneven"},
        {"assignment": "dynamic"},
        {"in_order": False},
        {"num_workers": 1},
        {"persistent_workers": True},
        {"multiprocessing_context": "forkserver"},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["transform", "collate_fn"])
def test_an_error_of_a_class_made_at_run_time_arrives(query, where, options):
    loader = loader_of(query, **{"num_workers": 2, **options, where: fails_late})
    received = []
    with support.alarm(60), pytest.raises(RuntimeError, match="NoSuchKey: it is gone"):
        for batch in loader:
            received.append(batch["id"])
    # Only batches that were received count.
    options.pop("persistent_workers", None)
    rest = ids(resumed(query, state_of(loader), **{"num_workers": 2, **options}))
    assert Counter(support.flat(received + rest)) == Counter(range(stopping.ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("transform", [fails_late, cannot_be_sent])
def test_neither_is_lost_on_the_way_to_a_loader_of_the_users(query, transform):
    _, dataset = tq.create_dataloader(
        query, output_format="dict", batch_size=7, transform=transform
    )
    with support.alarm(60), pytest.raises(RuntimeError, match=r"NoSuchKey|exited unexpectedly"):
        list(DataLoader(dataset, batch_size=None, num_workers=2))


def fails_from(cls, name, number, error):
    """A ``worker_init_fn``: from its call `number` on, a method fails in the thread that sends the batches of a worker."""

    def patch(_worker):
        real, calls = getattr(cls, name), itertools.count(1)

        def method(*arguments):
            if threading.current_thread().name == "QueueFeederThread" and next(calls) >= number:
                raise error
            return real(*arguments)

        setattr(cls, name, method)

    return patch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "name"),
    [(Connection, "_send_bytes"), (Connection, "_send"), (threading.Condition, "wait")],
    ids=["a message", "a part of it", "waiting for the next one"],
)
@pytest.mark.parametrize("number", [1, 3])
def test_a_worker_that_can_no_longer_send_ends(query, cls, name, number):
    loader = loader_of(
        query,
        num_workers=2,
        multiprocessing_context="fork",
        worker_init_fn=fails_from(cls, name, number, MemoryError()),
    )
    received = []
    with support.alarm(60), pytest.raises(RuntimeError, match="exited unexpectedly"):
        for batch in loader:
            received.append(batch["id"])
    rest = ids(resumed(query, state_of(loader), num_workers=2))
    assert Counter(support.flat(received + rest)) == Counter(range(stopping.ROWS))


def test_an_error_stays_what_it_is_where_there_is_no_memory_to_try_to_send_it(monkeypatch):
    """Of the end of an iteration, too, a loader would hear as of an error."""

    def fail(_object):
        raise MemoryError

    monkeypatch.setattr(pickle, "dumps", fail)
    liveness.check_sendable(StopIteration())


@pytest.mark.slow
def test_what_was_sent_before_that_is_received(monkeypatch):
    ended = threading.Event()

    def end(_error):
        ended.set()
        raise SystemExit

    def feed(*arguments):
        with contextlib.suppress(SystemExit):
            liveness._fed(*arguments)

    monkeypatch.setattr(liveness, "_end", end)
    monkeypatch.setattr(Queue, "_on_queue_feeder_error", staticmethod(liveness._not_sent))
    monkeypatch.setattr(Queue, "_feed", staticmethod(feed))
    fails = fails_from(threading.Condition, "wait", 1, MemoryError())
    monkeypatch.setattr(threading.Condition, "wait", threading.Condition.wait)
    fails(0)
    queue = multiprocessing.Queue()
    queue.put((0, "a batch"))
    assert ended.wait(60)
    assert queue.get(timeout=60) == (0, "a batch")


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [3, 7, 12])
def test_a_training_process_that_can_no_longer_ask_hears_of_it(
    query, number, method, persistent, monkeypatch
):
    here, real, calls = os.getpid(), Connection._send_bytes, itertools.count(1)

    def send(connection, written):
        # Not what starts a process of the method "spawn", nor what the workers send.
        if os.getpid() == here and len(written) < 200 and next(calls) == number:
            raise MemoryError
        return real(connection, written)

    options = {"num_workers": 2, "multiprocessing_context": method}
    loader = loader_of(query, persistent_workers=persistent, **options)
    monkeypatch.setattr(Connection, "_send_bytes", send)
    received, epochs = [], 0
    with support.alarm(100), pytest.raises(MemoryError):
        while True:
            received = []
            for batch in loader:
                received.append(batch["id"])
            epochs += 1
    monkeypatch.undo()
    state = state_of(loader)
    assert state["epoch"] == epochs
    rest = ids(resumed(query, state, num_workers=2))
    assert Counter(support.flat(received + rest)) == Counter(range(stopping.ROWS))


_LOCKED = {
    "asks": (
        lambda context: context.Queue(),
        lambda queue: queue.put(7),
        lambda queue: queue.put(None),
    ),
    "looks": (
        lambda context: context.Event(),
        lambda event: event.is_set(),
        lambda event: event.set(),
    ),
    "says that it ends": (
        lambda context: context.Event(),
        lambda event: event.set(),
        lambda event: event.set(),
    ),
}


@pytest.mark.parametrize("what", _LOCKED)
def test_an_exception_of_a_signal_while_a_training_process_keeps_no_lock(what):
    """Where a handler can raise: as a call begins, and as it has come back."""
    make, call, after = _LOCKED[what]
    context = liveness.asking_at_once(None)
    for number in itertools.count(1):
        thing, events = make(context), itertools.count(1)

        def strike(_frame, event, _of, events=events, number=number):
            if event in ("call", "c_return") and next(events) == number:
                raise KeyboardInterrupt

        try:
            sys.setprofile(strike)
            call(thing)
        except KeyboardInterrupt:
            with support.alarm(20):
                after(thing)
        else:
            break
        finally:
            sys.setprofile(None)
    assert number > 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_training_process_may_ask_for_more_than_a_pipe_holds(query, method):
    options = {"num_workers": 2, "multiprocessing_context": method, "prefetch_factor": 20_000}
    with support.alarm(60):
        received = support.flat(ids(loader_of(query, **options)))
    assert sorted(received) == list(range(stopping.ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"remainder": "uneven"}, {"assignment": "dynamic"}, {"in_order": False}],
    ids=str,
)
def test_a_worker_that_ends_early_without_a_word_is_an_error(query, options, workers, monkeypatch):
    def two_runs(self, real=BatchRuns.__next__):
        if self._sent == 2:
            raise StopIteration
        return real(self)

    loader = loader_of(query, num_workers=workers, multiprocessing_context="fork", **options)
    monkeypatch.setattr(BatchRuns, "__next__", two_runs)
    with pytest.raises(tq.DataError, match=r"ended before its last batch|pieces"):
        list(loader)
    monkeypatch.undo()
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.slow
def test_workers_that_say_too_early_that_they_have_ended_are_an_error(query, monkeypatch):
    def two_runs(self, real=BatchRuns.__next__):
        if self._sent == 2:
            raise StopIteration
        run = real(self)
        return run._replace(batches=[batch._replace(last=True) for batch in run.batches])

    loader = loader_of(query, num_workers=2, multiprocessing_context="fork")
    monkeypatch.setattr(BatchRuns, "__next__", two_runs)
    with pytest.raises(tq.DataError, match=rf"delivered 4 of {len(loader)} batches"):
        list(loader)
    assert loader.state_dict()["step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"in_order": False}, {"assignment": "dynamic"}], ids=str)
def test_workers_without_any_batch_have_ended_well(folder, options):
    few = loader_of(query_of(folder, "id < 3"), num_workers=3, remainder="uneven", **options)
    assert support.flat(ids(few)) == [0, 1, 2]
    none = loader_of(query_of(folder, "id < 0"), num_workers=3, remainder="uneven", **options)
    assert list(none) == []


# ------------------------------------------------------------------------------------------------
# Forks, while workers are under way.


def in_child(function):
    """The text of `function`'s result in a forked process, or of the error that it raises there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            said = str(function())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        said = answers.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("what", ["next", "iterate", "let go"])
def test_a_fork_leaves_the_workers_to_its_parent(query, what, persistent):
    loader = loader_of(query, num_workers=2, persistent_workers=persistent, shuffle=True)
    whole = ids(loader)
    loader.set_epoch(0)
    iterators = [iter(loader)]
    received = [next(iterators[0])["id"]]
    with support.alarm(60):
        if what == "next":
            said = in_child(lambda: next(iterators[0]))
            assert said.startswith("ConfigError: this iterator was made before a fork")
        elif what == "iterate":
            assert in_child(lambda: ids(loader) == whole) == "True"
        else:
            assert in_child(iterators.clear) == "None"
        received += ids(iterators[0])
    assert received == whole
    # Nor does what the child has set reach the parent.
    assert loader.state_dict()["epoch"] == 1


# ------------------------------------------------------------------------------------------------
# Copies, and datasets that somebody else reads.

COPIES = {"copy": copy.deepcopy, "pickle": lambda loader: pickle.loads(pickle.dumps(loader))}


@pytest.mark.slow
@pytest.mark.parametrize("method", COPIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"persistent_workers": True},
        {"assignment": "dynamic"},
        {"assignment": "dynamic", "persistent_workers": True},
        {"multiprocessing_context": "forkserver"},
    ],
    ids=str,
)
def test_a_copy_of_a_loader_delivers_its_epochs(query, options, method):
    made = loader_of(query, num_workers=2, shuffle=True, **options)
    copied = COPIES[method](made)
    for _ in range(2):
        with support.alarm(60):
            first, second = support.flat(ids(made)), support.flat(ids(copied))
        assert sorted(first) == sorted(second) == list(range(stopping.ROWS))
        if "assignment" not in options:
            assert first == second
    copied.set_epoch(5)
    assert (made.dataset.epoch, copied.dataset.epoch) == (2, 5)


def test_a_copy_says_that_it_is_one(query):
    _, dataset = tq.create_dataloader(query)
    copied = copy.deepcopy(dataset)
    with pytest.raises(tq.ConfigError, match="copy of a dataset"):
        copied.refresh()
    with pytest.raises(tq.ConfigError, match="copy"):
        copied.trace()


@pytest.mark.slow
def test_a_loader_of_the_users_over_a_dataset_that_is_being_read(query):
    loader = loader_of(query, num_workers=2, filters="id >= 0")
    iterator = iter(loader)
    received = [next(iterator)["id"]]
    others = list(DataLoader(loader.dataset, batch_size=None, num_workers=2))
    assert sorted(support.flat(ids(others))) == list(range(stopping.ROWS))
    received += ids(iterator)
    assert sorted(support.flat(received)) == list(range(stopping.ROWS))


class Nested(IterableDataset):
    """Makes its loader in the worker."""

    def __init__(self, folder, options):
        self._folder, self._options = folder, options

    def __iter__(self):
        loader = loader_of(query_of(self._folder, "k <> 2"), **self._options)
        yield len(loader)
        yield from ids(loader)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": "global"}, {"world_size": 2}], ids=str)
def test_a_worker_may_make_a_loader_of_its_own(folder, options):
    here = loader_of(query_of(folder, "k <> 2"), **options)
    [steps, *batches] = DataLoader(Nested(folder, options), batch_size=None, num_workers=1)
    assert steps == len(here)
    assert batches == ids(here)


@pytest.mark.slow
def test_after_the_death_of_a_worker_that_lives_on_others_start(query):
    loader = loader_of(query, num_workers=2, persistent_workers=True, shuffle=True)
    whole = ids(loader)
    loader.set_epoch(0)
    with pytest.raises(RuntimeError, match="killed by signal|exited unexpectedly"):
        for step, _ in enumerate(loader):
            if step == 0:
                for worker in psutil.Process().children():
                    if worker.pid in {each.pid for each in loader._iterator._workers}:
                        worker.kill()
    loader.set_epoch(0)
    assert ids(loader) == whole
