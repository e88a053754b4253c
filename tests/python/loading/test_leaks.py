"""Epochs and loaders leave nothing behind: memory, threads and descriptors do not grow, and killed processes leave
no shared memory. `make test-leaks` reads 1,000 epochs and makes 200 loaders; here it is a part of them."""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import support
import torchless
from effort import LONG, METHODS
from tensorquery.loading.workers.shared_memory import SEGMENTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3900 if LONG else 300)]

PROGRAM = Path(__file__).parents[1] / "helpers" / "leaks.py"

ROUNDS = {
    "epochs": (120, 1000),
    "creations": (40, 200),
    "persistent workers": (40, 300),
    "workers": (8, 60),
    "created workers": (8, 60),
}
"""By work: rounds after the warm-up, here and in the long run."""

MOST_GROWTH = 8 << 20

SEGMENTS_LENT = {("persistent workers", "descriptors"): 2 * SEGMENTS}
"""Workers that live on hold as many segments as were ever under way at once: more after an epoch in which the loop was slow."""


def written(folder, rows):
    """A table."""
    numbers = np.arange(rows)
    table = pa.table({"id": numbers, "v": numbers / 3, "s": [str(n) for n in numbers]})
    return support.write_parquet(folder / "t", table, files=4, row_group=rows // 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("leaks"), 2000)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A table whose epoch lasts: nobody misses a worker that has sent its last batch."""
    return written(tmp_path_factory.mktemp("long"), 400_000)


def program(*arguments):
    """The command of a Python program with this package."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return [sys.executable, *map(str, arguments)], environment


@pytest.mark.parametrize("work", ROUNDS)
def test_memory_threads_and_descriptors_stay_flat(folder, work):
    command, environment = program(PROGRAM, work, ROUNDS[work][LONG], folder)
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3600 if LONG else 300
    )
    assert found.returncode == 0, found.stderr[-3000:]
    readings = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(readings) >= 8
    # The least of the later half: what a reading catches in passing is no growth, and neither is a segment more or less that the
    # workers of the last epoch needed. A leak raises the least as well.
    half = len(readings) // 2
    early, late = readings[:half], readings[half:]
    for what in ("threads", "descriptors"):
        risen = readings[-1][what] - readings[0][what]
        is_flat = min(one[what] for one in late) <= max(one[what] for one in early)
        assert is_flat or risen <= SEGMENTS_LENT.get((work, what), 0), readings
    grown = min(one["resident"] for one in late) - min(one["resident"] for one in early)
    assert grown < MOST_GROWTH, readings


# ------------------------------------------------------------------------------------------------
# Processes that are killed.

TRAIN = """
import sys, time
import tensorquery as tq

if __name__ == "__main__":
    session = tq.Session()
    session.register_parquet("t", sys.argv[1])
    loader, _ = tq.create_dataloader(
        "SELECT id, v FROM t", session=session, rank=0, world_size=1, num_workers=2, shuffle=True, batch_size=16,
        multiprocessing_context=sys.argv[2],
    )
    kept = []
    while True:
        try:
            for number, batch in enumerate(loader):
                kept = [*kept[-3:], batch]
                if number == 5:
                    print("reading", flush=True)
                time.sleep(0.002)
        except RuntimeError:
            print("a worker is gone", flush=True)
            break
"""


def named(processes):
    """Files of shared memory, semaphores too, that have a name and are seen by these processes."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            found |= set(
                re.findall(
                    r"/dev/shm/(\S+)$", Path(f"/proc/{process}/maps").read_text(), re.MULTILINE
                )
            )
    return found


def is_shared(process):
    """Whether a process maps shared memory, with a name or without."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    return any("/dev/shm/" in line or "memfd:" in line for line in lines)


@pytest.mark.parametrize(
    ("killed", "method"),
    [(killed, "fork") for killed in ("worker", "trainer", "all")]
    # The others start slowly, and share memory in the same way.
    + [
        (killed, method)
        for killed in ("worker", "trainer", "all")
        for method in METHODS[1:]
        if LONG or killed == "all"
    ],
)
def test_who_is_killed_leaves_no_shared_memory(long, tmp_path, killed, method):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command, environment = program(script, long, method)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as trainer:
        try:
            assert trainer.stdout.readline() == "reading\n"
            family = psutil.Process(trainer.pid).children(recursive=True)
            # Neither multiprocessing's tracker of what has a name, which outlives those who died to remove it, nor its server.
            workers = [
                one
                for one in family
                if not one.children() and "resource_tracker" not in str(one.cmdline())
            ]
            assert len(workers) == 2, family
            assert is_shared(trainer.pid), (
                "the workers share no memory, so that this proves nothing"
            )
            seen = named([trainer.pid, *(one.pid for one in family)])
            victims = {"worker": workers[:1], "trainer": [trainer], "all": [trainer, *workers]}[
                killed
            ]
            for victim in victims:
                os.kill(victim.pid, signal.SIGKILL)
            trainer.wait(60)
            _, alive = psutil.wait_procs(family, timeout=60)
            assert alive == [], "processes outlive their trainer"
        finally:
            trainer.kill()
    end = time.monotonic() + 20
    while seen & set(os.listdir("/dev/shm")) and time.monotonic() < end:
        time.sleep(0.2)
    assert seen & set(os.listdir("/dev/shm")) == set()


_ARENAS = """
import ctypes, os, re, sys
import tensorquery as tq
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
def arenas():
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    assert libc.malloc_info(0, stream) == 0
    libc.fclose(stream)
    return len(re.findall(rb"<heap nr=", text.value))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
before = arenas()
loader, _ = tq.create_dataloader(path=sys.argv[1], output_format="numpy")
assert sum(len(batch["id"]) for batch in loader) == int(sys.argv[2])
print(before, arenas(), len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the allocator of glibc has arenas"
)
@pytest.mark.parametrize("told", ["", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_the_allocator_has_as_many_arenas_as_cpus_unless_it_is_told_otherwise(long, told):
    """Otherwise each of a dozen threads would have an arena, with memory that serves no other thread."""
    command, environment = program("-c", torchless.HIDDEN + _ARENAS, long, 400_000)
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        environment.pop(name, None)
    if told:
        environment[told] = "64" if told == "MALLOC_ARENA_MAX" else "glibc.malloc.arena_max=64"
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    before, after, cpus = map(int, answer.stdout.split())
    if told:
        assert after > max(before, cpus)
    else:
        assert after <= max(before, cpus)
