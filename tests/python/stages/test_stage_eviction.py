"""Stages stay within their bound: the least recently used ones are removed by themselves, and none that is in use."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tensorquery as tq

ROWS = 20_000


@pytest.fixture(scope="module")
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"id": np.arange(ROWS), "x": np.random.rand(ROWS)}))
    return session


def sql(number):
    """A query whose stage has all rows; each number gives another stage."""
    return f"SELECT id, x, {number} AS n FROM t ORDER BY id DESC"


def stage(session, number, place, **options):
    return tq.create_dataloader(
        sql(number), session=session, stage_dir=place, batch_size=4096, **options
    )


def numbers(session, place, up_to=9):
    """The numbers of the queries that have a stage, in ascending order."""
    keys = {stored.key for stored in tq.list_stages(place)}
    there = []
    for number in range(up_to):
        text = session.sql(sql(number)).explain(stage_dir=place)
        if "not built yet" not in text:
            there.append(number)
    assert len(there) == len(keys)
    return there


def age(place, seconds):
    """Let all stages be that much older."""
    for path in Path(place).rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))


def filled(session, place, count):
    """Stages that nobody holds, the first used longest ago; and the bytes of one."""
    for number in range(count):
        age(place, 60)
        stage(session, number, place)
    sizes = {stored.bytes for stored in tq.list_stages(place)}
    return max(sizes)


def test_without_a_bound_all_stay(session, tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORQUERY_STAGES_MAX_BYTES", raising=False)
    filled(session, tmp_path, 4)
    assert numbers(session, tmp_path) == [0, 1, 2, 3]


@pytest.mark.slow
def test_those_used_longest_ago_make_way(session, tmp_path):
    size = filled(session, tmp_path, 3)
    age(tmp_path, 60)
    # Opening one counts as using it.
    stage(session, 0, tmp_path)
    age(tmp_path, 60)
    stage(session, 3, tmp_path, stage_max_bytes=int(2.5 * size))
    assert numbers(session, tmp_path) == [0, 3]
    assert sum(stored.bytes for stored in tq.list_stages(tmp_path)) <= 2.5 * size


@pytest.mark.slow
def test_the_bound_of_the_environment(session, tmp_path, monkeypatch):
    size = filled(session, tmp_path, 3)
    monkeypatch.setenv("TENSORQUERY_STAGES_MAX_BYTES", f"{2.5 * size / 1024:.3f}KiB")
    age(tmp_path, 60)
    stage(session, 3, tmp_path)
    assert numbers(session, tmp_path) == [2, 3]
    # The loader's own comes first.
    age(tmp_path, 60)
    stage(session, 4, tmp_path, stage_max_bytes="1GiB")
    assert numbers(session, tmp_path) == [2, 3, 4]


@pytest.mark.slow
def test_none_that_is_in_use_goes(session, tmp_path):
    """Not one that a loader holds, not one that a process elsewhere holds, and not the one that was just built."""
    held = stage(session, 0, tmp_path)[0]
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, fcntl; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print('held', flush=True); sys.stdin.read()",
            str(build_and_let_go(session, 1, tmp_path)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout.readline() == b"held\n"
        stage(session, 2, tmp_path)
        newest = stage(session, 3, tmp_path, stage_max_bytes=1)[0]
        assert numbers(session, tmp_path) == [0, 1, 3]
        assert sum(len(batch["id"]) for batch in held) == ROWS
        assert sum(len(batch["id"]) for batch in newest) == ROWS
    finally:
        other.communicate(b"")
    del held, newest
    stage(session, 4, tmp_path, stage_max_bytes=1)
    assert numbers(session, tmp_path) == [4]


def build_and_let_go(session, number, place):
    """Build a stage; the file whose lock says that it is in use."""
    before = {stored.key for stored in tq.list_stages(place)}
    stage(session, number, place)
    (key,) = {stored.key for stored in tq.list_stages(place)} - before
    return Path(place) / "queries" / f"{key}.use"


@pytest.mark.slow
def test_one_that_another_process_builds_stays(session, tmp_path):
    """Its lock says so, although all its files are old; what it has written so far is shown."""
    key = "ab" * 32
    queries = tmp_path / "queries"
    (queries / key).mkdir(parents=True)
    note = '{"builder": "somebody", "build": "build-1", "rows": 12, "bytes": 345678, "beat": 3}'
    (queries / key / "progress.json").write_text(note)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, fcntl; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()",
            str(queries / f"{key}.lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        age(tmp_path, 30 * 24 * 3600)
        stage(session, 0, tmp_path, stage_max_bytes=1)
        (building,) = [stored for stored in tq.list_stages(tmp_path) if stored.key == key]
        assert (building.rows, building.bytes) == (None, 345678)
    finally:
        holder.communicate(b"")


@pytest.mark.slow
def test_clearing_by_size_begins_with_the_one_used_longest_ago(session, tmp_path):
    """Also where a newer one alone would make enough room."""
    session.register_table("little", pa.table({"id": np.arange(10)}))
    tq.create_dataloader("SELECT id FROM little ORDER BY id", session=session, stage_dir=tmp_path)
    age(tmp_path, 60)
    stage(session, 1, tmp_path)
    age(tmp_path, 60)
    stage(session, 2, tmp_path)
    total = sum(stored.bytes for stored in tq.list_stages(tmp_path))
    newest, middle, oldest = (stored.bytes for stored in tq.list_stages(tmp_path))
    assert oldest < middle
    assert tq.clear_stages(tmp_path, keep_bytes=total - oldest) == oldest
    assert tq.clear_stages(tmp_path, keep_bytes=newest) == middle
    assert numbers(session, tmp_path) == [2]


@pytest.mark.parametrize("bound", [0, -1, "much", True, 1.5])
def test_mistakes_are_told(session, tmp_path, bound):
    with pytest.raises(tq.ConfigError, match="stage_max_bytes"):
        stage(session, 0, tmp_path, stage_max_bytes=bound)
    assert tq.list_stages(tmp_path) == []


def test_a_mistake_in_the_environment_is_told(session, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_STAGES_MAX_BYTES", "lots")
    with pytest.raises(tq.ConfigError, match="TENSORQUERY_STAGES_MAX_BYTES.*lots"):
        stage(session, 0, tmp_path)


def test_the_size_is_shown_while_a_stage_is_built_and_where_it_is_found(session, tmp_path, capfd):
    _, dataset = stage(session, 0, tmp_path, show_progress=True)
    (built,) = dataset.stages
    (stored,) = tq.list_stages(tmp_path)
    files = sum(path.stat().st_size for path in tmp_path.rglob("*.arrow"))
    assert built.bytes == files <= stored.bytes
    shown = capfd.readouterr().err
    assert "building stage 1 of 1: 0.0 M rows, " in shown
    last = shown.rstrip().split("\r")[-1]
    assert f"{built.bytes / 2**20:,.0f} MiB" in last
    stage(session, 0, tmp_path, show_progress=True)
    assert f"{built.bytes / 2**20:,.0f} MiB" in capfd.readouterr().err


def test_below_a_url_what_was_just_used_stays(minio, session):
    """Readers are unknown there: a stage counts as read for a quarter of an hour after its last use."""
    place = f"{minio.root}/evict-{time.monotonic_ns()}"
    bounded = tq.Session(storage_options=minio.options)
    bounded.register_table("t", session.sql("SELECT * FROM t"))
    first, _ = stage(bounded, 0, place)
    stage(bounded, 1, place, stage_max_bytes=1)
    assert len(tq.list_stages(place, storage_options=minio.options)) == 2
    assert sum(len(batch["id"]) for batch in first) == ROWS
    assert tq.clear_stages(place, keep_bytes=1, storage_options=minio.options) > 0
    assert tq.list_stages(place, storage_options=minio.options) == []
