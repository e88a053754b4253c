"""Whatever a user keeps where stages lie stays: only what is provably ours is removed or trusted, and no link is followed."""

import fcntl
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tensorquery as tq
from tensorquery import _core

ROWS = 3000
LONG_AGO = 30 * 86_400
KEY = "ab" * 32
FINGERPRINT = f"1-{KEY}"


@pytest.fixture
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"x": np.arange(ROWS)}))
    return session


def loaded(session, sql="SELECT x FROM t", **options):
    options = {"batch_size": 100, "output_format": "dict", **options}
    loader, _ = tq.create_dataloader(sql, session=session, **options)
    return sorted(x for batch in loader for x in batch["x"])


def put(path, content="theirs"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def age(root, seconds=LONG_AGO):
    """Let everything below a folder be that much older, links themselves and not what they lead to."""
    for path in sorted(root.rglob("*"), reverse=True):
        then = path.lstat().st_mtime - seconds
        os.utime(path, (then, then), follow_symlinks=False)


def stages_of(root):
    return {path.name for path in root.iterdir() if path.is_dir() and not path.is_symlink()}


@pytest.mark.slow
def test_in_the_place_of_rows_only_old_stages_of_ours_go(session, tmp_path, monkeypatch):
    place, outside = tmp_path / "place", tmp_path / "outside"
    monkeypatch.setenv("TENSORQUERY_STAGES", str(place))
    assert loaded(session, "SELECT x FROM t WHERE x < 10", shuffle="global") == list(range(10))
    rows = place / "rows"
    (old,) = stages_of(rows)
    # A stage in which somebody keeps a file, and remains of killed writers.
    assert loaded(session, "SELECT x FROM t WHERE x < 20", shuffle="global") == list(range(20))
    (mixed,) = stages_of(rows) - {old}
    killed, killed_mixed = (rows / f"{name}.12-0.partial" for name in (FINGERPRINT, old))
    put(killed / "rows-0.arrow", "half")
    put(killed_mixed / "rows-0.arrow", "half")
    manifest = (rows / old / "manifest.json").read_text()
    theirs = [
        put(place / "my_dataset/part.parquet"),
        put(place / "checkpoints/manifest.json", manifest),
        put(place / "note.txt"),
        put(place / KEY / "model.bin"),
        put(rows / "data/rows-0.arrow"),
        put(rows / "data.1-0.partial/rows-0.arrow"),
        put(rows / FINGERPRINT / "manifest.json", '{"fingerprint": "theirs"}'),
        put(rows / f"2-{KEY}" / "manifest.json", manifest),
        put(rows / mixed / "weights.pt"),
        put(killed_mixed / "train.csv"),
        put(outside / "manifest.json", manifest),
        put(outside / "rows-0.arrow"),
    ]
    links = [rows / f"3-{KEY}", rows / f"{FINGERPRINT}.13-0.partial", rows / mixed / "rows-9.arrow"]
    for link in links:
        link.symlink_to(outside if link.parent == rows else outside / "rows-0.arrow")
    # Loaders that are still there use their stages.
    gc.collect()
    age(place)
    fresh = put(rows / f"{FINGERPRINT}.14-0.partial/rows-0.arrow", "half")
    assert loaded(session, shuffle="global") == list(range(ROWS))
    moved = [path for path in theirs if not path.exists()]
    # A stage that goes is renamed first, and stays under that name where somebody keeps a file in it.
    assert moved == [rows / mixed / "weights.pt"]
    assert len(list(rows.glob(f"{mixed}.*.partial/weights.pt"))) == 1
    assert all(
        path.read_text() in ("theirs", manifest, '{"fingerprint": "theirs"}')
        for path in theirs
        if path.exists()
    )
    assert all(link.is_symlink() for link in links[:2])
    assert fresh.exists()
    assert not killed.exists()
    assert not (killed_mixed / "rows-0.arrow").exists()
    assert not (rows / old).exists()
    assert not list(rows.glob(f"{mixed}*/*.arrow")) or all(
        path.is_symlink() for path in rows.glob(f"{mixed}*/*.arrow")
    )


@pytest.mark.slow
def test_in_the_place_of_stages_of_queries_only_ours_go(session, tmp_path):
    place, outside = tmp_path / "place", tmp_path / "outside"
    queries = place / "queries"

    def stage(limit):
        sql = f"SELECT x FROM t WHERE x < {limit} ORDER BY x DESC"
        assert loaded(session, sql, stage_dir=place) == list(range(limit))
        return max(stages_of(queries), key=lambda name: (queries / name).stat().st_mtime_ns)

    old = stage(10)
    mixed = stage(20)
    manifest = (queries / old / "manifest.json").read_text()
    killed = f"{7:064x}"
    note = {"builder": "process 1 on x", "build": "build-1-2-3", "rows": 5, "bytes": 9, "beat": 1}
    put(queries / killed / "progress.json", json.dumps(note))
    put(queries / killed / "build-1-2-3/part-00000.arrow#1", "half")
    build = next((queries / mixed).glob("build-*"))
    theirs = [
        put(place / KEY / "manifest.json", manifest),
        put(place / "data.parquet"),
        put(queries / "notes.sql"),
        put(queries / KEY / "model.bin"),
        put(queries / f"{1:064x}" / "manifest.json", '{"name": "theirs"}'),
        put(queries / f"{2:064x}" / "manifest.json", manifest),
        put(queries / f"{3:064x}" / "build-1-2-3/part-00000.arrow"),
        put(queries / mixed / "readme.md"),
        put(build / "extra.arrow"),
        put(outside / "manifest.json", manifest),
        put(outside / build.name / "part-00000.arrow"),
    ]
    links = [queries / f"{4:064x}", queries / mixed / "build-4-5-6"]
    for link in links:
        link.symlink_to(outside)
    gc.collect()
    age(place)
    # The next build sweeps, and so does the user.
    stage(30)
    new = tq.list_stages(place)[0].key
    assert not (queries / old).exists()
    assert not (queries / killed).exists()
    assert not (queries / mixed / "manifest.json").exists()
    assert not list(build.glob("part-*"))
    gc.collect()
    assert [stored.key for stored in tq.list_stages(place)] == [new]
    assert tq.clear_stages(place, unused_days=0) > 0
    assert not (queries / new).exists()
    for path in theirs:
        assert path.exists(), path
    assert all(link.is_symlink() for link in links)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_in_the_way_is_named(session, tmp_path, monkeypatch, kind):
    """In the place of the folder, of a stage, and of a lock."""
    outside = put(tmp_path / "outside/a").parent

    def block(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(outside)
        else:
            put(path)

    for room, options in (("rows", {"shuffle": "global"}), ("queries", {})):
        sql = "SELECT x FROM t" if options else "SELECT x FROM t ORDER BY x"
        free = tmp_path / f"free {room}"
        monkeypatch.setenv("TENSORQUERY_STAGES", str(free))
        assert loaded(session, sql, **options) == list(range(ROWS))
        (name,) = stages_of(free / room)
        locks = [f"{name}.lock"] if kind == "link" else []
        for at, way in enumerate(["", name, *locks]):
            place = tmp_path / f"{room} {at}"
            monkeypatch.setenv("TENSORQUERY_STAGES", str(place))
            block(place / room / way)
            with pytest.raises(tq.StorageError, match="TENSORQUERY_STAGES") as error:
                loaded(session, sql, **options)
            assert str(place / room / way) in str(error.value)
            assert "link" in str(error.value) or kind == "file"
    assert [path.name for path in outside.iterdir()] == ["a"]


_DEFAULT = """
import pyarrow as pa, tensorquery as tq
s = tq.Session()
s.register_table("t", pa.table({"x": ["patient %d" % i for i in range(100)]}))
for sql, options in (("SELECT x FROM t", {}), ("SELECT x FROM t", {"shuffle": "global"}), ("SELECT x FROM t ORDER BY x", {})):
    try:
        loader, _ = tq.create_dataloader(sql, session=s, output_format="dict", rank=0, world_size=1, **options)
        print(sum(len(b["x"]) for b in loader))
    except tq.StorageError as error:
        print("refused", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["none", "mode", "link", "owner"])
def test_the_default_folder_is_ones_own(tmp_path, harm):
    """Every user may make a folder of that name in the temporary directory first."""
    if harm == "owner" and os.getuid() != 0:
        pytest.skip("only root can act as another user")
    temporary, outside = tmp_path / "tmp", tmp_path / "outside"
    for folder in (temporary, outside):
        folder.mkdir()
        folder.chmod(0o1777)
    own = temporary / f"tensorquery-{os.getuid()}"
    if harm == "link":
        own.symlink_to(outside)
    elif harm != "none":
        own.mkdir()
        own.chmod(0o777 if harm == "mode" else 0o700)
        if harm == "owner":
            os.chown(own, 12346, 12346)
    environment = {key: value for key, value in os.environ.items() if key != "TENSORQUERY_STAGES"}
    environment |= {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _DEFAULT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    plain, *staged = done.stdout.splitlines()
    assert plain == "100", done.stderr
    if harm == "none":
        assert staged == ["100", "100"]
        assert own.stat().st_mode & 0o777 == 0o700
        return
    assert len(staged) == 2
    for line in staged:
        assert line.startswith("refused"), line
        assert str(own) in line
        assert "TENSORQUERY_STAGES" in line
    assert not [path for path in temporary.rglob("*") if path.is_file()]
    assert not list(outside.iterdir())


@pytest.mark.slow
def test_old_stages_go_by_age_unless_they_are_in_use(session, tmp_path, monkeypatch):
    """A training takes longer than three days, and its workers open the stage in each epoch."""
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    loader, _ = tq.create_dataloader(
        "SELECT x FROM t WHERE x < 10", session=session, shuffle="global"
    )
    assert sum(len(batch["x"]) for batch in loader) == 10
    rows = tmp_path / "rows"
    (name,) = stages_of(rows)
    assert _core.Stage.forget_old(rows, "", 3600) == 0
    age(tmp_path)
    assert _core.Stage.forget_old(rows, "", 3600) == 0
    del loader, _
    gc.collect()
    age(tmp_path)
    assert _core.Stage.forget_old(rows, name, 3600) == 0
    assert _core.Stage.forget_old(rows, "", 3600) == 1
    assert list(Path(rows).iterdir()) == []


def test_a_stage_that_a_process_writes_stays_whatever_its_clock_says(tmp_path):
    """Another process, whose clock is years ahead, takes a folder of this moment for an old one."""
    name = f"1-{7:064x}"
    half = put(tmp_path / f"{name}.12-0.partial" / "rows-0.arrow")
    age(tmp_path)
    with open(tmp_path / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert _core.Stage.forget_old(tmp_path, "", 3600) == 0
        assert half.exists()
    assert _core.Stage.forget_old(tmp_path, "", 3600) == 1
    assert list(tmp_path.iterdir()) == []
