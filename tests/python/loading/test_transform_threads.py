"""Promise: `transform_threads=` changes how many batches are transformed at once, and nothing else.

Order, content, states, errors and ends are those of the serial loader.
"""

import gc
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

import stopping
import tensorquery as tq
import torchless

THREADS = 3
AHEAD = THREADS + 2
"""Batches that may be read and not handed out."""


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    return stopping.query_of(stopping.write_table(str(tmp_path_factory.mktemp("threads"))))


def loader_of(query, transform, threads=THREADS, **options):
    options = {"batch_size": 7, "split_rows": 9, "rank": 0, "world_size": 1, **options}
    return tq.create_dataloader(query, transform=transform, transform_threads=threads, **options)


def our_threads():
    """Ours that run. Python lists one forever that a signal's exception kept from starting, as tests of signals do in this process."""
    return [
        t
        for t in threading.enumerate()
        if t.name.startswith("tensorquery-transform") and t.is_alive()
    ]


def assert_no_threads():
    """The threads of closed iterators end as soon as they are through with their batch."""
    wait_for(lambda: not our_threads())
    assert our_threads() == []


def wait_for(condition, seconds=60):
    """Returns when `condition()` holds, or after so many seconds."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _ends_with_no_thread():
    yield
    gc.collect()
    assert_no_threads()


def unevenly(batch):
    """Takes longest for the batches that come first."""
    time.sleep(0.02 if int(batch["id"][0]) % 2 else 0)
    return {"id": batch["id"] * 2, "thread": threading.get_ident()}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "shuffle_buffer_size": 20}])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batches_and_order_are_those_of_the_serial_loader(query, threads, options):
    serial, _ = loader_of(query, unevenly, None, **options)
    parallel, dataset = loader_of(query, unevenly, threads, **options)
    for _ in range(2):
        expected = [batch["id"].tolist() for batch in serial]
        found = list(parallel)
        assert [batch["id"].tolist() for batch in found] == expected
        assert len(expected) == len(parallel) > AHEAD
        workers = {batch["thread"] for batch in found}
        assert threading.get_ident() not in workers
        assert len(workers) <= threads
    assert dataset.epoch == 2


@pytest.mark.slow
def test_so_many_batches_are_transformed_at_once(query):
    # Nobody passes before all threads have come: a loader that runs them in turn would never pass.
    barrier = threading.Barrier(THREADS)
    most, running, lock = 0, 0, threading.Lock()

    def meet(batch):
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        if int(batch["id"][0]) < 7 * THREADS:
            barrier.wait(timeout=60)
        with lock:
            running -= 1
        return batch

    loader, _ = loader_of(query, meet)
    assert sum(len(batch["id"]) for batch in loader) == stopping.ROWS
    assert most == THREADS


@pytest.mark.slow
def test_no_more_than_the_bound_is_read_ahead(query):
    begun = []
    loader, _ = loader_of(query, lambda batch: begun.append(int(batch["id"][0])) or batch)
    iterator = iter(loader)
    for delivered in range(1, 6):
        next(iterator)
        time.sleep(0.1)
        assert len(begun) <= delivered + AHEAD - 1
    wait_for(lambda: len(begun) > 5)
    assert len(begun) > 5, "nothing was done ahead"
    del iterator


@pytest.mark.slow
def test_an_exception_comes_in_its_batchs_place(query):
    def fail_at_the_fourth(batch):
        if int(batch["id"][0]) == 21:
            raise KeyError("the fourth")
        time.sleep(0.02)
        return batch

    loader, dataset = loader_of(query, fail_at_the_fourth)
    iterator, found = iter(loader), []
    with pytest.raises(KeyError, match="the fourth") as caught:
        for batch in iterator:
            found.append(int(batch["id"][0]))
    assert found == [0, 7, 14]
    assert "fail_at_the_fourth" in [frame.name for frame in caught.traceback]
    assert dataset.state_dict()["step"] == 3
    # A new loader goes on with the batch that failed.
    again, _ = loader_of(query, None, None)
    again.load_state_dict(loader.state_dict())
    assert int(next(iter(again))["id"][0]) == 21


@pytest.mark.slow
def test_the_end_comes_with_an_exception_in_collate_too(query):
    def fail(batch):
        raise ValueError("no such shape")

    loader, dataset = loader_of(query, unevenly, collate_fn=fail)
    with pytest.raises(ValueError, match="no such shape"):
        next(iter(loader))
    assert dataset.state_dict()["step"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "shuffle_buffer_size": 20}])
@pytest.mark.parametrize("stop", [0, 1, 4, 11])
def test_a_state_counts_what_was_received_and_not_what_was_transformed(query, stop, options):
    expected = [batch["id"].tolist() for batch in loader_of(query, None, None, **options)[0]]
    loader, _ = loader_of(query, lambda batch: batch, **options)
    iterator = iter(loader)
    before = [batch["id"].tolist() for batch in itertools.islice(iterator, stop)]
    time.sleep(0.1)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["step"] == stop
    # With threads and without: a state says nothing of them.
    for threads in (THREADS, None):
        transform = None if threads is None else (lambda batch: batch)
        again, _ = loader_of(query, transform, threads, **options)
        again.load_state_dict(state)
        assert before + [batch["id"].tolist() for batch in again] == expected


@pytest.mark.slow
def test_ranks_share_rows_exactly_once(query):
    found = Counter()
    for rank in range(3):
        loader, _ = loader_of(query, lambda batch: batch, rank=rank, world_size=3)
        found.update(value for batch in loader for value in batch["id"].tolist())
    assert found == Counter(range(stopping.ROWS))


@pytest.mark.slow
def test_rows_of_an_uneven_rank_and_unknown_counts(tmp_path):
    query = stopping.query_of(stopping.write_table(str(tmp_path)), where="id % 3 = 0")
    loader, _ = loader_of(query, lambda batch: batch, remainder="uneven")
    ids = [value for batch in loader for value in batch["id"].tolist()]
    assert ids == list(range(0, stopping.ROWS, 3))


@pytest.mark.slow
def test_threads_end_after_a_break_and_the_same_epoch_begins_anew(query):
    loader, _ = loader_of(query, unevenly)
    for _ in loader:
        assert our_threads()
        break
    gc.collect()
    assert_no_threads()
    assert next(iter(loader))["id"][0] == 0


@pytest.mark.slow
def test_threads_end_with_a_deleted_iterator(query):
    _, dataset = loader_of(query, unevenly)
    iterator = iter(dataset)
    next(iterator)
    assert our_threads()
    del iterator
    gc.collect()
    assert_no_threads()


@pytest.mark.slow
def test_a_newer_iterator_ends_the_older_ones_threads(query):
    _, dataset = loader_of(query, unevenly)
    older = iter(dataset)
    next(older)
    newer = iter(dataset)
    with pytest.raises(tq.ConfigError, match="newer one"):
        next(older)
    assert next(newer)["id"][0] == 0
    del newer


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_all_formats(query, output_format):
    loader, _ = loader_of(query, lambda batch: (output_format, batch), output_format=output_format)
    rows = 0
    for name, batch in loader:
        assert name == output_format
        rows += batch.num_rows if output_format == "arrow" else len(batch["id"])
    assert rows == stopping.ROWS


@pytest.mark.slow
def test_torch_operations_overlap_and_give_the_same_numbers(query):
    def heavy(batch):
        matrix = torch.outer(batch["id"].double(), batch["id"].double())
        return {"sum": matrix.sum(), "id": batch["id"]}

    serial = [float(batch["sum"]) for batch in loader_of(query, heavy, None)[0]]
    assert [float(batch["sum"]) for batch in loader_of(query, heavy)[0]] == serial
    assert np.isfinite(serial).all()


@pytest.mark.slow
def test_worker_processes_are_refused(query):
    with pytest.raises(tq.ConfigError, match=r"transform_threads=3.*num_workers=0.*2 worker proc"):
        loader_of(query, unevenly, num_workers=2)
    _, dataset = loader_of(query, unevenly)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
    with pytest.raises(tq.ConfigError, match="already run transform in parallel"):
        next(iter(loader))


@pytest.mark.slow
@pytest.mark.parametrize("value", [0, -1, 1.5, "two", True])
def test_odd_numbers_are_refused(query, value):
    with pytest.raises(tq.ConfigError, match="transform_threads"):
        loader_of(query, unevenly, value)


@pytest.mark.slow
def test_threads_without_a_transform_are_refused(query):
    with pytest.raises(tq.ConfigError, match="has nothing to run"):
        loader_of(query, None)


@pytest.mark.slow
def test_the_interpreter_ends_while_threads_work(tmp_path):
    folder = stopping.write_table(str(tmp_path))
    script = f"""
    import sys, time
    sys.path[:0] = {sys.path!r}
    import tensorquery as tq

    def slow(batch):
        time.sleep(0.3)
        return batch

    session = tq.Session()
    session.register_parquet("t", {folder!r})
    loader, _ = tq.create_dataloader("SELECT id FROM t", session=session, batch_size=7,
                                     transform=slow, transform_threads=4, output_format="numpy")
    iterator = iter(loader)
    print(next(iterator)["id"].tolist(), flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", torchless.HIDDEN + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3, 4, 5, 6]\n"
    assert done.stderr == ""


class Slow(MemoryFileSystem):
    """Answers after a while, once it `waits`: the threads are then in the middle of a read."""

    protocol = "slow-for-threads"
    cachable = False
    waits = False

    def cat_file(self, path, start=None, end=None, **more):
        if Slow.waits:
            time.sleep(0.3)
        return super().cat_file(path, start=start, end=end, **more)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_forgets_an_iterator_whose_threads_read(monkeypatch):
    filesystem = Slow()
    for number in range(40):
        file = io.BytesIO()
        pq.write_table(pa.table({"id": range(7)}), file)
        filesystem.pipe_file(f"/threads/{number:02}.parquet", file.getvalue())
    session = tq.Session()
    session.register_parquet("t", "/threads/", filesystem=filesystem)
    query = session.sql("SELECT id FROM t")
    options = {"transform": dict, "transform_threads": THREADS, "batch_size": 7}
    dataset = tq.QueryDataset(query, rank=0, world_size=1, **options)
    monkeypatch.setattr(Slow, "waits", True)
    iterator = iter(dataset)
    next(iterator)
    for _ in range(12):
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            iterator = iter(dataset)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    # Here it goes on.
    monkeypatch.setattr(Slow, "waits", False)
    assert len(list(iterator)) == 39
