"""Promise 8 (docs/promises.md): a program ends with the status and the words that are its own, whatever reads when it ends."""

import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from effort import LONG

pytestmark = pytest.mark.slow

_HEAD = """
import atexit, faulthandler, logging, os, signal, sys, threading, time
import pyarrow as pa, tensorquery as tq

# For the test's report, if it does not end.
faulthandler.dump_traceback_later(90)

# A slow machine earns advice at an epoch's end.
logging.getLogger("tensorquery").setLevel(logging.ERROR)
session = tq.Session()
session.register_table("t", pa.table({"x": list(range(200_000))}))

def loader(workers, method, **options):
    if workers:
        options |= {"num_workers": workers, "multiprocessing_context": method}
    return tq.create_dataloader("SELECT x FROM t", session=session, batch_size=100, **options)[0]

def read_on(batches):
    for batch in batches:
        pass

def die(batch):
    if int(batch["x"][0]) >= 1000:
        os._exit(3)
    return batch

def refuse(batch):
    raise KeyError("no such thing")

"""

# The rest of each program, its status, and the end of its output; it may print nothing else.
PROGRAMS = {
    "normal": ("batches = iter(make()); next(batches)", 0, None),
    "exhausted": ("read_on(make())", 0, None),
    "persistent": (
        "batches = iter(make(persistent_workers=True) if sys.argv[1] != '0' else make()); next(batches)",
        0,
        None,
    ),
    "exit": ("batches = iter(make()); next(batches); sys.exit(3)", 3, None),
    "exit_in_loop": ("for batch in make(): sys.exit(4)", 4, None),
    "exception": ("for batch in make(): raise ValueError('mine')", 1, "ValueError: mine"),
    "daemon": (
        """
def ahead():
    loaders = make()
    while True:
        for batch in loaders:
            ready.release()
            # No epoch ends meanwhile: a process that starts when its parent ends says so, by `multiprocessing`.
            time.sleep(0.001)
ready = threading.Semaphore(0)
for _ in range(2):
    threading.Thread(target=ahead, daemon=True).start()
for _ in range(200):
    ready.acquire()
""",
        0,
        None,
    ),
    "daemon_and_main": (
        """
def ahead():
    for batch in make():
        ready.set()
        time.sleep(0.001)
ready, batches = threading.Event(), iter(make())
threading.Thread(target=ahead, daemon=True).start()
next(batches)
ready.wait()
raise ValueError("mine")
""",
        1,
        "ValueError: mine",
    ),
    "atexit": (
        """
batches = iter(make())
next(batches)
left = []
atexit.register(lambda: print(1 + len(list(batches)), flush=True))
""",
        0,
        None,
    ),
    # torch says something of its own where it imports modules while a program ends.
    "atexit_begins": (
        "next(iter(loader(0, None))); atexit.register(lambda: read_on(loader(0, None)))",
        0,
        None,
    ),
    "sigterm": (
        "batches = iter(make()); next(batches); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
        -signal.SIGTERM,
        None,
    ),
    "sigterm_handled": (
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
while True:
    read_on(make())
""",
        5,
        None,
    ),
    "worker_dies": ("read_on(make(transform=die))", None, None),
    "worker_fails": ("read_on(make(transform=refuse))", 1, "KeyError"),
    "transform_threads": (
        "batches = iter(loader(0, None, transform=lambda b: b, transform_threads=2)); next(batches)",
        0,
        None,
    ),
}

SPAWNED = ("normal", *["exception", "sigterm_handled", "worker_fails"] * LONG)
"""Programs of which workers are spawned, too: it takes them seconds to start."""

ALL = [
    *((name, workers, "fork") for name in PROGRAMS for workers in (0, 2)),
    *((name, 2, "spawn") for name in SPAWNED),
]


def ended(tmp_path, source, workers, method):
    program = tmp_path / "program.py"
    body = f"def make(**options):\n    return loader({workers}, {method!r}, **options)\n{source}"
    program.write_text(
        _HEAD + "if __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    command = [sys.executable, str(program), str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            one.kill()
        pytest.fail(f"the program does not end: {process.communicate()[1]}")
    until = time.monotonic() + 30
    while left_behind(program) and time.monotonic() < until:
        time.sleep(0.05)
    assert left_behind(program) == []
    return process.returncode, out, err


def left_behind(program):
    """Processes of a program that has ended."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        told = process.info["cmdline"] or []
        if str(program) in told and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


@pytest.mark.parametrize(("name", "workers", "method"), ALL)
def test_a_program_ends_as_it_says(tmp_path, name, workers, method):
    source, status, words = PROGRAMS[name]
    if name == "worker_dies":
        # Without workers the transform ends the program itself.
        status, words = (1, "exited unexpectedly") if workers else (3, None)
    code, out, err = ended(tmp_path, source, workers, method)
    assert code == status, err
    if words is None:
        assert err == ""
    else:
        assert err.startswith("Traceback (most recent call last):")
        assert words in err.strip().splitlines()[-1]
        for noise in ("Exception ignored", "Fatal", "terminate", "Aborted", "panicked"):
            assert noise not in err
    if name == "atexit":
        assert out == "2000\n"


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow", "dict"])
def test_daemon_threads_that_read_end_with_the_program(tmp_path, form):
    """Each form is in other code when Python ends the thread: torch's own, Rust's, or Python's."""
    source = f"""
        def ahead():
            while True:
                read_on(make(output_format={form!r}))
        threading.Thread(target=ahead, daemon=True).start()
        time.sleep(0.3)
    """
    for _ in range(2 if LONG else 1):
        assert ended(tmp_path, textwrap.dedent(source), 0, None) == (0, "", "")


def test_a_daemon_thread_in_a_python_function_of_a_query_ends_with_the_program(tmp_path):
    source = """
        import numpy
        def slow(column):
            time.sleep(0.05)
            return column
        session.register_udf("slow", slow, ["int64"], "int64")
        lazy, _ = tq.create_dataloader("SELECT slow(x) AS x FROM t", session=session, batch_size=100)
        def ahead():
            while True:
                read_on(lazy)
        threading.Thread(target=ahead, daemon=True).start()
        time.sleep(0.3)
    """
    assert ended(tmp_path, textwrap.dedent(source), 0, None) == (0, "", "")
