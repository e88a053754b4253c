"""Promise: Ctrl-C and leaving the loop early stop promptly, and leak no thread, process or file handle."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import support
import tensorquery as tq
import torchless

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")

PROMPT_SECONDS = 25.0
"""Less than what is interrupted would take, also less than the half minute after which a silent store is asked again; and
enough for a slow machine that is busy."""


_elders: set[int] = set()


@pytest.fixture(autouse=True)
def _know_the_elders():
    """multiprocessing's fork server and resource tracker, started by other tests, live on by design."""
    _elders.clear()
    _elders.update(child.pid for child in psutil.Process().children(recursive=True))


def new_children():
    """How many descendants this process has that were not there when the test began."""
    alive = psutil.Process().children(recursive=True)
    return sum(child.pid not in _elders for child in alive)


def children_that_stay():
    """`new_children()`, without those that are just ending."""
    return settled(new_children, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    table = pa.table({"id": np.arange(40_000), "s": [f"text {i}" for i in range(40_000)]})
    return support.write_parquet(
        tmp_path_factory.mktemp("stop"), table, files=8, row_group=500, write_page_index=True
    )


@pytest.fixture
def query(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.sql("SELECT id, s FROM t")


# ------------------------------------------------------------------------------------------------
# Ctrl-C: a process of its own is interrupted in the middle of something long.

_HEAD = """
import sys, threading, time
import tensorquery as tq
from tensorquery.loading.create import create_dataloader
folder = sys.argv[1]
session = tq.Session()
session.register_parquet("t", folder)
# 1.6 billion pairs, none of them kept, each at the cost of three transcendental functions: minutes.
ENDLESS = "SELECT a.id, a.s FROM t a JOIN t b ON sqrt(exp(sin(a.id * b.id))) + cos(a.id) * tanh(b.id) > 10"
def ready():
    print("ready", flush=True)
"""

PROGRAMS = {
    "loop": """
loader, _ = create_dataloader("SELECT * FROM t", session=session, batch_size=4, output_format="dict")
ready()
while True:
    for batch in loader:
        pass
""",
    "loop_with_workers": """
loader, _ = create_dataloader("SELECT * FROM t", session=session, batch_size=4, num_workers=2)
for batch in loader:
    ready()
    break
while True:
    for batch in loader:
        time.sleep(0.001)
""",
    "waiting_for_the_first_batch": """
loader, _ = create_dataloader(ENDLESS, session=session, output_format="dict")
ready()
list(loader)
""",
    "count": """
ready()
session.sql(ENDLESS).count()
""",
    "to_arrow": """
ready()
session.sql(ENDLESS).to_arrow()
""",
    "head": """
ready()
session.sql(ENDLESS).head()
""",
    "register_table": """
ready()
session.register_table("once", session.sql(ENDLESS))
""",
    "another_library_reads": """
import pyarrow
query = session.sql(ENDLESS)
ready()
try:
    pyarrow.table(query)
except pyarrow.ArrowException as error:
    print(error)  # Python has its say at the next call
    time.sleep(100)
""",
}


@contextlib.contextmanager
def program(source, *arguments):
    """A process that runs `source` and has said "ready"."""
    head = _HEAD if "num_workers" in source else torchless.HIDDEN + _HEAD
    command = [sys.executable, "-c", head + source, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()


def interrupt(process):
    """Sends Ctrl-C after half a second; seconds until the process ended with KeyboardInterrupt."""
    time.sleep(0.5)
    assert process.poll() is None, process.stderr.read()
    children = psutil.Process(process.pid).children(recursive=True)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    seconds = time.monotonic() - start
    assert process.returncode in (1, -signal.SIGINT, 130), (process.returncode, errors)
    assert errors.strip().splitlines()[-1].startswith("KeyboardInterrupt"), errors
    _, alive = psutil.wait_procs(children, timeout=PROMPT_SECONDS)
    assert alive == []
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize("what", PROGRAMS)
def test_ctrl_c_stops_promptly(folder, what):
    with program(PROGRAMS[what], folder) as process:
        assert interrupt(process) < PROMPT_SECONDS


ASKING = """
import signal
import pyarrow as pa
session.register_table("numbers", pa.table({"n": range(12_000)}))
long = session.sql("SELECT count(*) AS n FROM numbers a, numbers b WHERE (a.n * b.n) % 7 = 1")
answers = []
def ask(*_):
    answers.append(session.sql("SELECT sum(n) AS n FROM numbers").to_arrow().column("n")[0].as_py())
signal.signal(signal.SIGALRM, ask)
signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
ready()
count = long.to_arrow().column("n")[0].as_py()
signal.setitimer(signal.ITIMER_REAL, 0)
print(count, answers)
"""


@pytest.mark.slow
def test_a_signal_handler_may_run_a_query_while_another_is_waited_for(folder):
    with program(ASKING, folder) as process:
        answer, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    residues = np.bincount(np.arange(12_000) % 7)
    pairs = sum(residues[a] * residues[b] for a in range(7) for b in range(7) if a * b % 7 == 1)
    count, answers = answer.split(maxsplit=1)
    assert int(count) == pairs
    assert set(eval(answers)) == {sum(range(12_000))}, errors
    assert "panicked" not in errors


SLOW = {
    "registering": """
ready()
session.register_parquet("slow", names)
""",
    "making a query": """
ready()
session.sql(f"SELECT * FROM '{names[0]}'")
""",
    "and nobody goes on": """
import psutil
def connections():
    return [held for held in psutil.Process().net_connections("tcp") if held.status == "ESTABLISHED"]
ready()
try:
    session.sql(f"SELECT * FROM '{names[0]}'")
except KeyboardInterrupt:
    while connections():
        time.sleep(0.05)
    raise
""",
    "planning": """
session.register_parquet("slow", names)
query = session.sql("SELECT * FROM slow WHERE id = 7")
open(sys.argv[3], "w").close()
ready()
query.plan_shards()
""",
    "reading": """
session.register_parquet("slow", names)
loader, _ = create_dataloader("SELECT * FROM slow", session=session, output_format="dict")
open(sys.argv[3], "w").close()
ready()
list(loader)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SLOW)
def test_ctrl_c_stops_waiting_for_storage(folder, tmp_path, what):
    """A server that stops answering: from the start, or when the program says so. Pending requests are given up."""
    source = 'names = [sys.argv[2] + f"/{number:03}.parquet" for number in range(8)]' + SLOW[what]
    brake = tmp_path / "brake"
    if 'open(sys.argv[3], "w")' not in source:
        brake.touch()
    with (
        support.serve(folder, tmp_path / "log", brake) as url,
        program(source, folder, url, str(brake)) as process,
    ):
        assert interrupt(process) < PROMPT_SECONDS


# ------------------------------------------------------------------------------------------------
# Leaving early.


def handles():
    """Open files, by what they point to."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(found)


def threads():
    return len(os.listdir("/proc/self/task"))


def settled(reading, bound, seconds=60):
    """The value of `reading()` once it is within `bound`, or after `seconds`."""
    end = time.monotonic() + seconds
    while reading() > bound and time.monotonic() < end:
        time.sleep(0.1)
    return reading()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_twenty_early_exits_leak_nothing(query, folder, workers):
    def leave_early():
        loader, _ = tq.create_dataloader(
            query, batch_size=8, num_workers=workers, shuffle=True, shuffle_buffer_size=500
        )
        for batch in loader:
            assert len(batch["id"]) == 8
            break

    for _ in range(3):
        leave_early()
    gc.collect()
    before_handles, before_threads = len(handles()), threads()
    for _ in range(20):
        leave_early()
    gc.collect()
    assert children_that_stay() == 0
    # Idle threads of the blocking pool end after ten seconds.
    assert settled(threads, before_threads) <= before_threads
    assert settled(lambda: len(handles()), before_handles) <= before_handles
    assert [path for path in handles() if path.startswith(folder)] == []


@pytest.mark.slow
def test_an_exception_in_the_loop_leaves_no_process(query):
    loader, _ = tq.create_dataloader(query, num_workers=2)

    def loop():
        for batch in loader:
            support.fail(batch)

    with pytest.raises(ZeroDivisionError):
        loop()
    gc.collect()
    assert children_that_stay() == 0


@pytest.mark.slow
def test_an_error_of_a_worker_leaves_no_process(query):
    loader, _ = tq.create_dataloader(query, num_workers=2, transform=support.fail)
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        list(loader)
    assert children_that_stay() == 0
    assert time.monotonic() - start < PROMPT_SECONDS


@pytest.mark.slow
def test_reading_stops_when_the_loop_is_left(folder):
    """No further split is begun once the generator is closed. Batches are so large that all of them could wait to be taken;
    the last 60 of 80 splits wait until then, since this thread may be kept from running for longer than it takes to read."""
    begun = []
    left = threading.Event()

    def slowly(ids):
        begun.append(len(ids))
        assert ids[0].as_py() < 20 * 500 or left.wait(PROMPT_SECONDS)
        return ids

    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_udf("slowly", slowly, ["int64"], "int64")
    loader, dataset = tq.create_dataloader(
        "SELECT slowly(id) AS id, s FROM t", session=session, batch_size=5000
    )
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    left.set()
    # Splits under way finish; some may have begun just now.
    time.sleep(0.5)
    at_once = len(begun)
    time.sleep(0.5)
    assert len(begun) == at_once < 80
    metrics = dataset.metrics()
    assert metrics["rows"] == 5000
    assert metrics["splits"] < 80


def test_a_second_iterator_closes_the_first(query):
    loader, _ = tq.create_dataloader(query, batch_size=8)
    first = iter(loader)
    start = next(first)["id"].tolist()
    second = iter(loader)
    assert next(second)["id"].tolist() == start
    with pytest.raises(tq.ConfigError, match="closed, because a newer one was started"):
        next(first)
    assert next(second)["id"].tolist() == list(range(8, 16))


def test_two_loaders_of_one_query_do_not_disturb_each_other(query):
    loaders = [tq.create_dataloader(query, batch_size=1000)[0] for _ in range(2)]
    pairs = [(a["id"].tolist(), b["id"].tolist()) for a, b in zip(*loaders, strict=True)]
    assert all(a == b for a, b in pairs)
    assert len(pairs) == 40


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_collected_in_the_middle_of_an_epoch(query, workers):
    loader, dataset = tq.create_dataloader(query, batch_size=8, num_workers=workers)
    iterator = iter(loader)
    kept = next(iterator)
    copy = kept["id"].clone()
    del loader, dataset, iterator
    gc.collect()
    assert children_that_stay() == 0
    # A batch outlives the loader that made it.
    assert (kept["id"] == copy).all()


@pytest.mark.slow
def test_persistent_workers_end_with_their_loader(query):
    loader, _ = tq.create_dataloader(query, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 40
    assert new_children() == 2
    del loader, _
    gc.collect()
    assert children_that_stay() == 0


@pytest.mark.slow
def test_a_process_with_a_live_iterator_exits_by_itself(folder):
    """No hang at exit, in the middle of an epoch, with and without workers."""
    for workers in (0, 2):
        source = f"""
loader, _ = create_dataloader("SELECT * FROM t", session=session, batch_size=4, num_workers={workers})
iterator = iter(loader)
next(iterator)
ready()
"""
        with program(source, folder) as process:
            start = time.monotonic()
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            assert time.monotonic() - start < 2 * PROMPT_SECONDS
