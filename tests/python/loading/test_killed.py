"""Promise 5 (docs/promises.md): a rank is killed (SIGKILL). With its last saved state, the rows received before and after are exactly
the epoch, on this topology and on another. A resume reads only the rows that are left."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import psutil
import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import stopping
import support
import tensorquery as tq
from stopping import SHUFFLES, ids, loader_of, query_of, resumed, take
from tensorquery.loading.workers.liveness import from_living

# Not about the machine that runs the tests.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

# One rank of a training run. A line of its log holds the rows of a step and the state after it, written at once:
# a torn line is a step that was not saved.
_PROGRAM = """
import json, sys, time
import stopping
folder, log, options, state = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:5])
query = stopping.query_of(folder, "k <> 2")
steps = options.pop("steps")
loader = stopping.loader_of(query, **options)
if state is not None:
    loader.load_state_dict(state)
with open(log, "a", buffering=1) as file:
    for step, batch in enumerate(loader, 1):
        file.write(json.dumps({"ids": batch["id"], "state": loader.state_dict()}) + "\\n")
        # Never to the end of the epoch, however late it is killed.
        time.sleep(0.02 if step < steps + 3 else 600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(tmp_path_factory.mktemp("killed") / "t")


def wanted(folder):
    return Counter(query_of(folder, "k <> 2").to_arrow()["id"].to_pylist())


def program(folder, log, options, state=None):
    """The program of one rank, in a session of its own so that its workers can be ended with it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _PROGRAM, folder, str(log), json.dumps(options)]
    return subprocess.Popen([*command, json.dumps(state)], env=environment, start_new_session=True)


def steps_in(log):
    """The whole lines of a log."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]  # fmt: skip


def run_and_kill(folder, logs, options, steps, state=None):
    """Start a rank per log and kill all of them, workers too, once each has taken `steps` steps.

    Returns:
        What the last common step leaves: rows of all ranks, and a state. The ranks of a real run wait for one another
        at every step; these do not, so a rank that is ahead falls back.
    """
    programs = [
        program(
            folder, log, {**options, "rank": rank, "world_size": len(logs), "steps": steps}, state
        )
        for rank, log in enumerate(logs)
    ]
    try:
        end = time.monotonic() + 240
        while min(len(steps_in(log)) for log in logs) < steps:
            assert all(one.poll() is None for one in programs)
            assert time.monotonic() < end, "no progress"
            time.sleep(0.005)
    finally:
        for one in programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    taken = [steps_in(log) for log in logs]
    common = min(len(lines) for lines in taken)
    rows = Counter(row for lines in taken for line in lines[:common] for row in line["ids"])
    states = [lines[common - 1]["state"] for lines in taken]
    assert len(taken) == 1 or states[0] == states[1]
    return rows, states[-1]


@pytest.mark.parametrize(
    ("world_size", "workers", "seed"), [(1, 0, 1), (2, 0, 2), (1, 2, 3), (2, 2, 4)]
)
def test_the_whole_process_is_killed(folder, tmp_path, world_size, workers, seed):
    steps = random.Random(seed).randint(2, 9)
    options = {"num_workers": workers, "batch_size": 7, **SHUFFLES["on"]}
    logs = [tmp_path / f"{rank}.log" for rank in range(world_size)]
    before, state = run_and_kill(folder, logs, options, steps)
    assert state["step"] >= steps
    assert state["epoch"] == 0
    query = query_of(folder, "k <> 2")
    topologies = [(world_size, workers, 7), (3, 0, 5), (2, 2, 4), (1, 0, 16)]
    for size, processes, batch_size in topologies:
        found = before.copy()
        again = {"num_workers": processes, "batch_size": batch_size, **SHUFFLES["on"]}
        for rank in range(size):
            loader = resumed(query, state, rank=rank, world_size=size, **again)
            found.update(support.flat(ids(loader)))
        assert found == wanted(folder), (size, processes, batch_size)


def test_killed_twice_on_different_topologies(folder, tmp_path):
    first = [tmp_path / f"first{rank}.log" for rank in range(2)]
    second = [tmp_path / "second.log"]
    found, state = run_and_kill(folder, first, {"num_workers": 2, **SHUFFLES["on"]}, 3)
    more, state = run_and_kill(folder, second, {"batch_size": 5, **SHUFFLES["on"]}, 4, state)
    found += more
    query = query_of(folder, "k <> 2")
    for rank in range(3):
        loader = resumed(query, state, rank=rank, world_size=3, **SHUFFLES["on"])
        found.update(support.flat(ids(loader)))
    assert found == wanted(folder)


@pytest.fixture
def where_it_waits(monkeypatch):
    """Call it where workers run: torch then finds out in the loop alone, and soon, that one has died.

    Its signal handler raises wherever the program is at that moment, which no test can foresee.
    """
    waits = _MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(waits, "__defaults__", (0.2,))
    before = []
    yield lambda: before.append(signal.signal(signal.SIGCHLD, signal.SIG_DFL))
    for handler in before:
        signal.signal(signal.SIGCHLD, handler)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_worker_is_killed(folder, where_it_waits, world_size, seed):
    """The loop sees torch's error; the loader's state is after the last batch that it received."""
    chance = random.Random(seed)
    query = query_of(folder, "k <> 2")
    options = {"num_workers": 2, "prefetch_factor": 2, "batch_size": 3, **SHUFFLES["on"]}
    here = {"world_size": world_size, **options}
    loader = loader_of(query, **here)
    received, at = [], chance.randint(1, 8)
    elders = psutil.Process().children()
    iterator = iter(loader)
    received += [next(iterator)["id"] for _ in range(at)]
    state = json.dumps(loader.state_dict())
    workers = [child for child in psutil.Process().children() if child not in elders]
    assert len(workers) == 2
    victim = chance.choice(workers)
    where_it_waits()
    victim.send_signal(signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        for batch in iterator:
            received.append(batch["id"])
            state = json.dumps(loader.state_dict())
    assert json.dumps(loader.state_dict()) == state
    state = json.loads(state)
    assert state["step"] == len(received)
    assert support.flat(ids(loader_of(query, **here)))[: 3 * len(received)] == support.flat(
        received
    )
    # Resume under the old topology, in the old loader too, and under another topology.
    rest = ids(resumed(query, state, **here))
    loader.load_state_dict(state)
    assert ids(loader) == rest
    if world_size == 1:
        assert Counter(support.flat(received + rest)) == wanted(folder)
        found = Counter(support.flat(received))
        for rank in range(2):
            again = {"batch_size": 8, **SHUFFLES["on"]}
            found.update(support.flat(ids(resumed(query, state, rank=rank, world_size=2, **again))))
        assert found == wanted(folder)


# Its workers never come to an end of their planning; with "other" it forks a process that inherits all its pipes, too.
_PLANS = """
import os, sys, threading, time
import stopping
import tensorquery as tq
from tensorquery.loading.epoch_state import EpochState
trainer, real = os.getpid(), EpochState.here
def here(state):
    if os.getpid() != trainer:
        os.write(1, b"worker %d\\n" % os.getpid())
        time.sleep(600)
    return real(state)
def other():
    if os.fork() == 0:
        os.write(1, b"other %d\\n" % os.getpid())
        time.sleep(600)
EpochState.here = here
if sys.argv[2] == "other":
    threading.Timer(3, other).start()
next(iter(stopping.loader_of(stopping.query_of(sys.argv[1]), num_workers=2, multiprocessing_context="fork")))
"""


@pytest.mark.parametrize("other", ["none", "other"])
def test_workers_that_plan_end_with_their_trainer(folder, other):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _PLANS, folder, other]
    started = []
    trainer = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        for _ in range(2 if other == "none" else 3):
            what, number = trainer.stdout.readline().split()
            started.append((what, psutil.Process(int(number))))
        trainer.kill()
        trainer.wait()
        workers = [process for what, process in started if what == "worker"]
        assert len(workers) == 2
        assert psutil.wait_procs(workers, timeout=30)[1] == []
    finally:
        trainer.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait()


@pytest.mark.parametrize("dies", [True, False])
def test_a_connection_to_a_worker_breaks(folder, where_it_waits, monkeypatch, dies):
    """A worker's last message may name a connection that is closed already, a moment before the worker counts as dead."""
    elders = psutil.Process().children()
    iterator = iter(loader_of(query_of(folder, "k <> 2"), num_workers=2, batch_size=3))
    next(iterator)
    victim = next(child for child in psutil.Process().children() if child not in elders)
    where_it_waits()

    def closed(iterator, timeout=None):
        if dies:
            threading.Timer(0.2, victim.kill).start()
        raise ConnectionResetError("by the worker")

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", closed)
    expected = (RuntimeError, f"{victim.pid}. exited") if dies else (ConnectionError, "the worker")
    with pytest.raises(expected[0], match=expected[1]):
        for _ in iterator:
            pass


def test_an_error_of_the_user_is_not_the_death_of_a_worker_that_has_finished():
    class Found:
        def __init__(self):
            self._workers = [multiprocessing.get_context("spawn").Process(target=int)]

        def __next__(self):
            raise FileNotFoundError("of a transform")

    found = Found()
    for worker in found._workers:
        worker.start()
        worker.join()
    with pytest.raises(FileNotFoundError, match="of a transform"):
        next(from_living(found))


# ------------------------------------------------------------------------------------------------
# Bytes that a resume reads.

FILES, FILE_ROWS = 20, 500


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """URL, traffic, and where each file's footer begins: 20 files over a network, of five row groups each."""
    root = tmp_path_factory.mktemp("served")
    table = support.random_table(np.random.default_rng(3), FILES * FILE_ROWS)
    support.write_parquet(root, table, files=FILES, row_group=100, compression="none")
    log = tmp_path_factory.mktemp("log") / "requests"
    with support.serve(root, log) as url:
        yield url, support.Traffic(log), {path.name: footer(path) for path in root.iterdir()}


def footer(path):
    """The byte at which a Parquet file's footer begins."""
    data = path.read_bytes()
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def far(url, where="", agent="first", **options):
    """A loader over the network, of one rank, whose requests bear the name `agent`."""
    session = tq.Session()
    paths = [f"{url}/{number:03}.parquet" for number in range(FILES)]
    plain = {"allow_http": "true", "user_agent": agent}
    session.register_parquet("t", paths, storage_options=plain)
    options = {"batch_size": 50, "split_rows": 100, **options}
    return loader_of(session.sql(f"SELECT id, v FROM t {where}"), **options)


def length(ranges):
    return sum(stop - start for _, start, stop in ranges)


@pytest.mark.parametrize("where", ["", "WHERE k <> 2"])
@pytest.mark.parametrize("there", [{}, {"world_size": 2}, {"batch_size": 80}])
def test_a_resume_reads_the_rest_only(served, where, there):
    """In the files' order, at 90 % of the epoch: the first 17 of 20 files are not asked for anything."""
    url, traffic, _ = served
    loader = far(url, where)
    traffic.take()
    batches = ids(loader)
    whole = traffic.take()
    assert {name for name, _, _ in whole} == {f"{number:03}.parquet" for number in range(FILES)}
    _, state = take(far(url, where), len(batches) * 9 // 10)
    # Read-ahead of the stopped loader may still arrive: only requests of the resumed loaders count.
    ranks = range(there.get("world_size", 1))
    loaders = [far(url, where, "second", **{**there, "rank": rank}) for rank in ranks]
    for loader in loaders:
        # Another number of ranks counts a filtered query; the counting is not the reading.
        len(loader)
    traffic.take()
    found = []
    for loader in loaders:
        loader.load_state_dict(state)
        found += support.flat(ids(loader))
    rest = traffic.take("second")
    assert sorted(found) == sorted(support.flat(batches[len(batches) * 9 // 10 :]))
    assert {int(name[:3]) for name, _, _ in rest} <= set(range(17, FILES))
    assert 0 < length(rest) < 0.2 * length(whole)


@pytest.mark.parametrize("window", [200, 1000])
def test_a_shuffled_resume_reads_the_window_in_progress_and_the_rest(served, window):
    url, traffic, _ = served
    options = {"shuffle": True, "shuffle_buffer_size": window}
    loader = far(url, **options)
    traffic.take()
    batches = ids(loader)
    whole = length(traffic.take())
    stop = len(batches) * 9 // 10
    _, state = take(far(url, **options), stop)
    loader = far(url, agent="second", **options)
    loader.load_state_dict(state)
    traffic.take()
    assert ids(loader) == batches[stop:]
    # A tenth of the rows, a window, and the splits that were open: at most 32 of 100.
    read = length(traffic.take("second"))
    assert 0 < read < (0.1 + window / (FILES * FILE_ROWS) + 0.32) * whole


def test_set_epoch_asks_the_storage_nothing(served):
    url, traffic, footers = served
    loader = far(url, shuffle=True)
    epochs = [ids(loader)]
    for epoch in (1, 5):
        traffic.take()
        loader.set_epoch(epoch)
        assert len(loader) == FILES * FILE_ROWS // 50
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert traffic.take() == []
        epochs.append(ids(loader))
        for name, _, stop in traffic.take():
            assert stop <= footers[name]
    assert len({str(batches) for batches in epochs}) == 3
