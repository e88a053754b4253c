"""A stage is written once, whoever asks first, in bounded memory; an incomplete one is never read."""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stage_writers import HELD, plan_of
from tensorquery import _core
from tensorquery.errors import StorageError

ROWS = 200_000

# Programs for another process, with the table in argv[1] and the stages in argv[2].
_HEAD = """
import sys, os
import tensorquery as tq
from tensorquery import _core
import stage_writers as here
"""

_ENSURE = """
seen = []
plan = here.plan_of(sys.argv[1], here.HELD)
print("ready", flush=True)
sys.stdin.readline()
stage = _core.Stage.ensure(plan, sys.argv[2], 2, lambda *counts: seen.append(counts))
print("wrote" if seen[-1][1] else "opened", stage.num_rows, flush=True)
"""


@pytest.fixture
def table(tmp_path):
    """A table of many splits."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": np.arange(ROWS)}), path, row_group_size=5000)
    return str(path)


@contextlib.contextmanager
def program(source, *arguments, go=True, hold=False):
    """A process that runs `source` and has said "ready"; `go` lets it pass the line it may wait for, `hold` is for `HELD`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if hold:
        environment["TEST_HOLD"] = "yes"
    command = [sys.executable, "-c", _HEAD + source, *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        try:
            line = process.stdout.readline()
            assert line == "ready\n", process.stderr.read()
            if go:
                release(process)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def release(process):
    process.stdin.write("\n")
    process.stdin.flush()


def finish(process):
    # Not communicate(), which would lose what came in one read with "ready".
    out = process.stdout.read().split()
    assert process.wait(timeout=120) == 0, process.stderr.read()
    return out


def until_written(stages, writer, seconds=120):
    """Returns when a process that is held has begun to write."""
    end = time.monotonic() + seconds
    while not list(stages.glob("*.partial/rows-0.arrow")):
        assert writer.poll() is None, writer.stderr.read()
        assert time.monotonic() < end, "nothing is written"
        time.sleep(0.01)


def test_rows_are_gathered_by_number(table, tmp_path):
    plan, seen = plan_of(table), []
    stage = _core.Stage.ensure(plan, tmp_path / "stages", 2, lambda *counts: seen.append(counts))
    assert stage.num_rows == ROWS
    assert stage.path == str(tmp_path / "stages" / plan.fingerprint)
    assert stage.bytes == sum(os.path.getsize(f) for f in (tmp_path / "stages").rglob("rows-*"))
    assert seen[-1] == (plan.num_splits, plan.num_splits, ROWS, stage.bytes)
    assert seen == sorted(seen)
    wanted = [ROWS - 1, 0, 77_777, 0]
    assert pa.record_batch(stage.gather(wanted))["id"].to_pylist() == wanted
    again = _core.Stage.open(stage.path, plan.fingerprint)
    stage.remove()
    assert list((tmp_path / "stages").iterdir()) == []
    assert pa.record_batch(again.gather(wanted))["id"].to_pylist() == wanted


@pytest.mark.slow
def test_of_three_processes_one_writes(table, tmp_path):
    stages = tmp_path / "stages"
    with contextlib.ExitStack() as stack:
        several = [program(_ENSURE, table, stages, go=False) for _ in range(3)]
        programs = [stack.enter_context(one) for one in several]
        for process in programs:
            release(process)
        results = sorted(finish(process) for process in programs)
    assert results == [["opened", str(ROWS)]] * 2 + [["wrote", str(ROWS)]]
    assert len([path for path in stages.iterdir() if path.is_dir()]) == 1


@pytest.mark.slow
def test_when_the_writer_is_killed_a_waiting_process_writes(table, tmp_path):
    stages = tmp_path / "stages"
    with program(_ENSURE, table, stages, hold=True) as writer:
        until_written(stages, writer)
        with program(_ENSURE, table, stages) as waiter:
            time.sleep(0.3)
            assert waiter.poll() is None
            half = [path for path in stages.iterdir() if path.is_dir()]
            assert [path.suffix for path in half] == [".partial"]
            writer.kill()
            assert finish(waiter) == ["wrote", str(ROWS)]
    whole = [path for path in stages.iterdir() if path.is_dir()]
    assert [path.name for path in whole] == [plan_of(table, HELD).fingerprint]


@pytest.mark.slow
def test_ctrl_c_ends_waiting_and_writing(table, tmp_path):
    stages = tmp_path / "stages"
    stages.mkdir()
    fingerprint = plan_of(table, HELD).fingerprint
    with open(stages / f"{fingerprint}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with program(_ENSURE, table, stages) as waiter:
            time.sleep(0.3)
            waiter.send_signal(signal.SIGINT)
            _, errors = waiter.communicate(timeout=120)
    assert errors.strip().endswith("KeyboardInterrupt"), errors
    with program(_ENSURE, table, stages, hold=True) as writer:
        until_written(stages, writer)
        writer.send_signal(signal.SIGINT)
        _, errors = writer.communicate(timeout=120)
    assert errors.strip().endswith("KeyboardInterrupt"), errors
    assert not (stages / fingerprint).exists()
    assert _core.Stage.ensure(plan_of(table, HELD), stages, 2).num_rows == ROWS


def test_an_error_of_progress_ends_writing(table, tmp_path):
    def fail(*counts):
        raise ZeroDivisionError(counts)

    with pytest.raises(ZeroDivisionError):
        _core.Stage.ensure(plan_of(table), tmp_path / "stages", 1, fail)


def halve(path):
    os.chmod(path, 0o644)
    os.truncate(path, os.path.getsize(path) // 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        (
            "rows-0.arrow",
            halve,
            r"damaged: rows-0.arrow has \d+ bytes, but \d+ were written; delete",
        ),
        ("rows-0.arrow", os.unlink, "damaged: rows-0.arrow is missing; delete"),
        ("schema.arrow", os.unlink, "damaged: schema.arrow is missing; delete"),
        ("manifest.json", os.unlink, "there is no stage in .*TENSORQUERY_STAGES"),
        ("manifest.json", halve, "damaged: manifest.json cannot be parsed"),
    ],
)
def test_what_is_left_of_a_stage_is_not_opened_and_is_written_anew(
    table, tmp_path, name, harm, said
):
    """A temporary directory may be cleaned up file by file, and meanwhile somebody reads."""
    plan, wanted = plan_of(table), [ROWS - 1, 0]
    reader = _core.Stage.ensure(plan, tmp_path, 1)
    harm(f"{reader.path}/{name}")
    with pytest.raises(StorageError, match=said):
        _core.Stage.open(reader.path, plan.fingerprint)
    again = _core.Stage.ensure(plan, tmp_path, 1)
    assert pa.record_batch(again.gather(wanted))["id"].to_pylist() == wanted
    assert again.path == reader.path
    assert [path.name for path in tmp_path.glob(f"{plan.fingerprint}*") if path.is_dir()] == [
        plan.fingerprint
    ]
    # A mapped file that is cut short cannot be read on.
    if harm is os.unlink:
        assert pa.record_batch(reader.gather(wanted))["id"].to_pylist() == wanted


def test_a_stage_that_cannot_be_looked_at_is_not_written_anew(table, tmp_path):
    plan = plan_of(table)
    manifest = f"{_core.Stage.ensure(plan, tmp_path, 1).path}/manifest.json"
    os.unlink(manifest)
    os.mkdir(manifest)
    with pytest.raises(StorageError, match=r"cannot read .*manifest\.json of a stage"):
        _core.Stage.ensure(plan, tmp_path, 1)


@pytest.mark.slow
def test_a_full_disk_is_an_error_that_names_the_place(table, tmp_path):
    source = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
print("ready", flush=True)
try:
    _core.Stage.ensure(here.plan_of(sys.argv[1]), sys.argv[2], 1)
except tq.StorageError as error:
    print(error)
"""
    stages = tmp_path / "stages"
    with program(source, table, stages) as process:
        message = " ".join(finish(process))
    assert f"cannot write the stage {stages}/{plan_of(table).fingerprint}" in message
    assert int(re.search(r"(\d+) bytes were written", message)[1]) <= 4 << 20
    assert "Make room there, or set TENSORQUERY_STAGES to a folder with more of it" in message
    assert not list(stages.glob("*.partial"))


@pytest.mark.slow
def test_a_worker_process_reads_a_stage_opened_before_the_fork(table, tmp_path):
    stage = _core.Stage.ensure(plan_of(table), tmp_path, 2)
    wanted = [5, 199_999, 0]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ids = pa.record_batch(stage.gather(wanted))["id"].to_pylist()
            os.write(write, repr(ids).encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 100).decode() == repr(wanted)
    os.waitpid(child, 0)
    os.close(read)


@pytest.mark.slow
def test_memory_is_bounded_while_writing(tmp_path):
    rows, files = 2_000_000, 8
    rng = np.random.default_rng(1)
    for file in range(files):
        columns = {name: rng.random(rows) for name in "abcd"}
        options = {"compression": "none", "use_dictionary": False}
        pq.write_table(
            pa.table(columns), tmp_path / f"{file}.parquet", row_group_size=100_000, **options
        )
    source = """
import threading, time, psutil
plan = here.plan_of(sys.argv[1], "SELECT * FROM t")
process, most, done = psutil.Process(), 0, threading.Event()
before = process.memory_info().rss
def watch():
    global most
    while not done.wait(0.01):
        most = max(most, process.memory_info().rss)
watcher = threading.Thread(target=watch)
watcher.start()
print("ready", flush=True)
stage = _core.Stage.ensure(plan, sys.argv[2], 2)
done.set()
watcher.join()
print(stage.num_rows, stage.bytes, most - before)
"""
    with program(source, tmp_path, tmp_path / "stages") as process:
        count, size, grown = map(int, finish(process))
    assert count == rows * files
    assert size > 480 << 20
    assert grown < 160 << 20, f"{grown >> 20} MiB for a stage of {size >> 20} MiB"
