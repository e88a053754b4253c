"""A stage is complete or absent, also if the disk is full, or if its builder stands still for longer than others
wait."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
import torchless
from iceberg_servers import fresh

pytestmark = pytest.mark.slow

ROWS = 1_000_000
"""Rows of 16 bytes: a stage of about 15 MiB."""

SQL = "SELECT k, v FROM t ORDER BY k, v"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(8)
    path = tmp_path_factory.mktemp("faults") / "t.parquet"
    pq.write_table(pa.table({"k": rng.permutation(ROWS), "v": np.arange(ROWS)}), path)
    return path


# The beginning of all programs below.
COMMON = """
import json, os, resource, subprocess, sys, time
import tensorquery as tq

def stage(table, place, sql, options=None, **session):
    made = tq.Session(storage_options=options, **session)
    made.register_parquet("t", table, storage_options={})
    return tq.create_dataloader(sql, session=made, stage_dir=place, batch_size=50_000, output_format="arrow")

def attempt(table, place, sql, **session):
    try:
        stage(table, place, sql, **session)
    except tq.StorageError as error:
        return str(error)
    return None

def left(place):
    return sorted(name for _, _, names in os.walk(place) for name in names if not name.endswith((".lock", ".use")))
"""


def run(program, *words, prefix=()):
    """Run a program, and parse the JSON that it prints."""
    text = torchless.HIDDEN + COMMON + textwrap.dedent(program)
    done = subprocess.run(
        [*prefix, sys.executable, "-c", text, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_says_what_to_do(told, place):
    assert told is not None, "there was room: the disk must be smaller"
    assert "there is no room for a stage" in told
    assert str(place) in told
    assert "bytes are free" in told
    assert "stage_dir=" in told


def test_a_full_disk_is_told_and_leaves_nothing(table, tmp_path):
    """On a small disk of its own, which is then made larger: the next run builds the stage."""
    own = ("unshare", "--user", "--map-root-user", "--mount")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if subprocess.run([*own, *mount], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces with mounts: the test of a file's largest size remains")
    found = run(
        """
        table, place, sql, *mount = sys.argv[1:]
        subprocess.run(mount, check=True)
        told = attempt(table, place + "/stages", sql)
        files, shown = left(place), len(tq.list_stages(place + "/stages"))
        # A part that was being written may be on its way still, and with it the removed file.
        deadline = time.monotonic() + 20
        while (free := os.statvfs(place).f_bavail * os.statvfs(place).f_frsize) <= 3 << 20:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
        loader, dataset = stage(table, place + "/stages", sql)
        rows = sum(batch.num_rows for batch in loader)
        built = dataset.stages[0].seconds is not None
        print(json.dumps([told, files, shown, free, rows, built]))
        """,
        table,
        place,
        SQL,
        *mount,
        prefix=own,
    )
    told, files, shown, free, rows, built = found
    assert_says_what_to_do(told, place)
    assert (files, shown) == ([], 0)
    # The space that was written is freed.
    assert free > 3 << 20
    assert (rows, built) == (ROWS, True)


def test_a_file_that_may_not_grow_is_told_and_leaves_nothing(table, tmp_path):
    found = run(
        """
        table, place, sql = sys.argv[1:]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        told = attempt(table, place, sql)
        files = left(place)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        loader, _ = stage(table, place, sql)
        print(json.dumps([told, files, sum(batch.num_rows for batch in loader)]))
        """,
        table,
        tmp_path / "stages",
        SQL,
    )
    told, files, rows = found
    assert_says_what_to_do(told, tmp_path / "stages")
    assert files == []
    assert rows == ROWS


def test_no_room_to_spill_is_told_apart(table, tmp_path):
    """Another folder lacks room, so the advice is another one, too."""
    spills = tmp_path / "spills"
    spills.mkdir()
    found = run(
        """
        table, place, sql, spills = sys.argv[1:]
        os.environ["TMPDIR"] = spills
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
        print(json.dumps([attempt(table, place, sql, memory_limit="24MiB"), left(place)]))
        """,
        table,
        tmp_path / "stages",
        SQL,
        spills,
    )
    told, files = found
    assert told is not None
    assert "no room to compute the rows of a stage" in told
    assert str(spills) in told
    assert "TMPDIR" in told
    assert files == []


# ------------------------------------------------------------------------------------------------
# A builder that stands still.

BUILD = """
table, place, sql, options = sys.argv[1:]
loader, dataset = stage(table, place, sql, json.loads(options))
(found,) = dataset.stages
rows = [value for batch in loader for value in batch["k"].to_pylist()]
print(json.dumps([found.seconds is not None, found.digest, len(rows), rows == sorted(set(rows))]))
"""


def build(*words):
    return subprocess.Popen(
        [sys.executable, "-c", torchless.HIDDEN + COMMON + BUILD, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return json.loads(out)


def test_a_builder_that_stands_still_and_goes_on_makes_no_second_stage(minio, table):
    """It is silent for longer than its lease lasts; another process takes over; then it wakes up with its half stage."""
    place = f"{minio.root}/{fresh('stages')}"
    # Slow enough to be stopped in the middle.
    sql = "SELECT k, v, sum(v) OVER (PARTITION BY k % 1000 ORDER BY k) AS s FROM t ORDER BY k"
    words = (table, place, sql, json.dumps(minio.options))
    sleeper = build(*words)
    while not tq.list_stages(place, storage_options=minio.options):
        assert sleeper.poll() is None, sleeper.communicate()
        time.sleep(0.005)
    sleeper.send_signal(signal.SIGSTOP)
    try:
        (begun,) = tq.list_stages(place, storage_options=minio.options)
        assert begun.rows is None, "it was complete before the stop: the query must be slower"
        built, digest, count, in_order = outcome(build(*words))
        assert (built, count, in_order) == (True, ROWS, True)
    finally:
        sleeper.send_signal(signal.SIGCONT)
    woken, same, count, in_order = outcome(sleeper)
    assert (woken, same, count, in_order) == (False, digest, ROWS, True)
    (stored,) = tq.list_stages(place, storage_options=minio.options)
    assert stored.rows == ROWS
    # Of its half nothing is left.
    client, prefix = minio.client(), place.removeprefix(f"{minio.root}/")
    listed = client.list_objects_v2(Bucket=minio.bucket, Prefix=prefix)["Contents"]
    builds = {Path(found["Key"]).parent.name for found in listed if found["Key"].endswith(".arrow")}
    assert len(builds) == 1
    assert outcome(build(*words))[:2] == [False, digest]
