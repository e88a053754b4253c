"""Promise 6 (docs/promises.md): a file that is rewritten in place is found out, though it has its old size and time; links, permissions and copies are no change."""

import os
import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

ROWS = 6000
PARQUET = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def write(path, value):
    """A file of one value, as long as one of any other value."""
    table = pa.table({"x": np.full(ROWS, value)})
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=1000, **PARQUET)
        case ".csv":
            pa.csv.write_csv(table, path)
        case ".arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=1000)


def rewrite(path, value):
    """Write another content into the file itself, and set its time back."""
    before = path.stat()
    new = path.parent.with_name("new" + path.suffix)
    write(new, value)
    content = new.read_bytes()
    new.unlink()
    assert len(content) == before.st_size
    # The clock of files has steps.
    time.sleep(0.02)
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def values(loader):
    return {value for batch in loader for value in batch["x"].tolist()}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".arrow"])
def test_a_rewritten_file_is_an_error(tmp_path, suffix, workers):
    path = tmp_path / f"a{suffix}"
    write(path, 1)
    loader, _ = tq.create_dataloader(path=str(path), batch_size=500, num_workers=workers)
    assert values(loader) == {1}
    rewrite(path, 2)
    with pytest.raises(
        tq.DataError, match=r"a\.\w+ changed .*change time moved from .* to .*in place"
    ):
        values(loader)
    again, _ = tq.create_dataloader(path=str(path), batch_size=500, num_workers=workers)
    assert values(again) == {2}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_that_is_rewritten_in_mid_epoch_is_an_error(tmp_path, suffix):
    for number in range(60):
        write(tmp_path / f"{number:02}{suffix}", 1)
    loader, _ = tq.create_dataloader(path=str(tmp_path), batch_size=500)
    seen = set()
    with pytest.raises(tq.DataError, match=rf"59{suffix} changed .*change time moved"):
        for step, batch in enumerate(loader):
            seen |= set(batch["x"].tolist())
            if step == 1:
                rewrite(tmp_path / f"59{suffix}", 2)
    assert seen == {1}


@pytest.mark.slow
def test_what_does_not_touch_the_content_is_no_change(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, 1)
    for workers in (0, 1):
        loader, _ = tq.create_dataloader(path=str(path), batch_size=500, num_workers=workers)
        for change in ("link", "mode"):
            time.sleep(0.02)
            before = path.stat().st_ctime_ns
            if change == "link":
                os.link(path, tmp_path / f"link {workers}")
            else:
                os.chmod(path, 0o640 + workers)
            assert path.stat().st_ctime_ns != before
            assert values(loader) == {1}


def test_states_and_fingerprints_know_nothing_of_it(tmp_path):
    """A run after a file was renamed and back, or touched by a program for backups, goes on where the last one ended."""
    path = tmp_path / "a.parquet"
    write(path, 1)

    def made():
        return tq.create_dataloader(path=str(path), batch_size=500, plan_cache=None)

    loader, _ = made()
    for _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    time.sleep(0.02)
    os.rename(path, tmp_path / "b.parquet")
    os.rename(tmp_path / "b.parquet", path)
    again, _ = made()
    assert again.state_dict()["fingerprint"] == state["fingerprint"]
    again.load_state_dict(state)
    assert sum(len(batch["x"]) for batch in again) == ROWS - 1500


def test_a_plan_cache_does_not_keep_it(tmp_path):
    """Entries of an earlier run are used, though the file was touched since."""
    path = tmp_path / "a.parquet"
    write(path, 1)

    def made():
        session = tq.Session(plan_cache=str(tmp_path / "plans"))
        session.register_parquet("t", str(path))
        return tq.create_dataloader("SELECT x FROM t", session=session, batch_size=500)[0]

    assert values(made()) == {1}
    kept = sorted((tmp_path / "plans").rglob("*.memo"))
    assert kept
    shutil.copy2(path, tmp_path / "b.parquet")
    time.sleep(0.02)
    os.rename(path, tmp_path / "c.parquet")
    os.rename(tmp_path / "c.parquet", path)
    loader = made()
    assert values(loader) == {1}
    assert sorted((tmp_path / "plans").rglob("*.memo")) == kept
    # And what it was then is pinned now.
    rewrite(path, 2)
    with pytest.raises(tq.DataError, match="change time moved"):
        values(loader)
