"""A stage whose bytes are not those that were written is built again, or is an error: its rows never reach a batch."""

import json
import os
import time

import numpy as np
import pyarrow as pa
import pytest

import tensorquery as tq
from tensorquery import _core

ROWS = 20_000
SQL = "SELECT x, y, s FROM t ORDER BY x"


@pytest.fixture
def session():
    session = tq.Session()
    columns = {
        "x": np.arange(ROWS),
        "y": np.arange(ROWS) * 0.5,
        "s": [f"row {n}" for n in range(ROWS)],
    }
    session.register_table("t", pa.table(columns))
    return session


def copied(table):
    """In memory of its own: batches lie in the file that a test damages."""
    return pa.table({name: pa.array(table[name].to_pylist()) for name in table.column_names})


def loaded(session, sql=SQL, **options):
    options = {"batch_size": 1000, "output_format": "arrow", "rank": 0, "world_size": 1, **options}
    loader, _ = tq.create_dataloader(sql, session=session, **options)
    return copied(pa.Table.from_batches(list(loader)))


def flip(path, place, bit=0x40):
    """Turn one bit over, and leave all that a listing shows as it was."""
    before, mode = path.stat(), path.stat().st_mode
    content = bytearray(path.read_bytes())
    at = place(content)
    assert 0 <= at < len(content)
    content[at] ^= bit
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.write(content)
    os.chmod(path, mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def values_of_x(content):
    return content.find(np.arange(5000, 5002).tobytes()) + 8


def values_of_s(content):
    return content.find(b"row 7777")


PLACES = {
    "values": values_of_x,
    "texts": values_of_s,
    "description": lambda content: content.find(b"\xff\xff\xff\xff", 900) + 40,
    "footer": lambda content: len(content) - 60,
    "checksums": lambda content: content.find(b"TQSUMS01") - 30,
    "length of the footer": lambda content: len(content) - 8,
}


def rot(stage, part, place):
    """A bit that no program flipped: no time says so."""
    flip(part, place)
    time.sleep(0.02)
    (stage / "verified").write_bytes(b"")


@pytest.fixture
def staged(session, tmp_path):
    """A stage of `SQL` in a folder: its rows, its folder and its file."""
    rows = loaded(session, stage_dir=tmp_path)
    (part,) = tmp_path.rglob("part-*.arrow")
    return rows, part.parent.parent, part


@pytest.mark.parametrize("place", PLACES)
def test_a_file_that_was_touched_is_verified_and_built_again(session, tmp_path, staged, place):
    rows, stage, part = staged
    flip(part, PLACES[place])
    assert loaded(session, stage_dir=tmp_path) == rows
    assert json.loads((stage / "manifest.json").read_text())["build"] != part.parent.name
    # The next one reads it, and need not verify.
    assert loaded(session, stage_dir=tmp_path) == rows


@pytest.mark.slow
@pytest.mark.parametrize(("place", "workers"), [("values", 0), ("texts", 0), ("values", 1)])
def test_what_rots_is_an_error_when_it_is_read_and_then_built_again(
    session, tmp_path, staged, place, workers
):
    rows, stage, part = staged
    rot(stage, part, PLACES[place])
    with pytest.raises(tq.DataError, match="the stage is damaged") as error:
        loaded(session, stage_dir=tmp_path, num_workers=workers)
    assert part.name in str(error.value)
    assert loaded(session, stage_dir=tmp_path, num_workers=workers) == rows


@pytest.mark.parametrize("place", ["description", "footer", "checksums", "length of the footer"])
def test_what_rots_and_shows_before_a_row_is_read_is_built_again(session, tmp_path, staged, place):
    rows, stage, part = staged
    rot(stage, part, PLACES[place])
    assert loaded(session, stage_dir=tmp_path) == rows
    assert json.loads((stage / "manifest.json").read_text())["build"] != part.parent.name


def test_columns_that_are_not_read_are_not_verified(session, tmp_path, staged):
    rows, stage, part = staged
    rot(stage, part, values_of_s)
    query = session.sql(SQL)
    (found,) = [stored.key for stored in tq.list_stages(tmp_path)]
    assert stage.name == found
    table = pa.ipc.open_file(part).read_all()
    assert table["x"].to_pylist() == rows["x"].to_pylist(), "other readers see a plain file"
    own = tq.Session()
    own.register_arrow("t", str(part))
    assert own.sql("SELECT x, y FROM t").to_arrow()["x"].to_pylist() == rows["x"].to_pylist()
    with pytest.raises(tq.DataError, match="stage is damaged"):
        own.sql("SELECT s FROM t").to_arrow()
    assert query.count() == ROWS


def test_a_damaged_stage_is_no_bad_file_that_may_be_skipped(session, tmp_path, staged):
    rows, stage, part = staged
    rot(stage, part, values_of_x)
    with pytest.raises(tq.DataError, match="the stage is damaged"):
        loaded(session, stage_dir=tmp_path, on_error="skip")
    assert loaded(session, stage_dir=tmp_path, on_error="skip") == rows


@pytest.mark.parametrize("kind", ["cut", "flipped", "other"])
def test_a_damaged_manifest_is_written_anew(session, tmp_path, staged, kind):
    rows, stage, _ = staged
    manifest = stage / "manifest.json"
    text = manifest.read_text()
    changed = {
        "cut": text[:100],
        "flipped": text.replace('"rows":20000', '"rows":20001'),
        "other": "{}",
    }
    assert changed[kind] != text
    manifest.write_text(changed[kind])
    assert loaded(session, stage_dir=tmp_path) == rows


def test_a_stage_that_was_only_touched_is_kept(session, tmp_path, staged):
    """A link more, or other permissions: all is verified once, and nothing is built."""
    rows, stage, part = staged
    os.link(part, tmp_path / "link")
    os.chmod(part, 0o444)
    loader, dataset = tq.create_dataloader(
        SQL, session=session, stage_dir=tmp_path, output_format="arrow"
    )
    assert copied(pa.Table.from_batches(list(loader))) == rows
    assert dataset.stages[0].seconds is None
    assert part.exists()
    assert (stage / "verified").exists()


# ------------------------------------------------------------------------------------------------
# Rows for access at random.


def rows_places(content):
    return content.find(np.arange(700, 702).tobytes()) + 8


@pytest.mark.parametrize(
    "place", [rows_places, lambda content: len(content) - 30, lambda content: 70]
)
def test_damaged_rows_are_written_anew(session, tmp_path, monkeypatch, place):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    sql = "SELECT x, y, s FROM t"
    rows = loaded(session, sql, shuffle="global", shuffle_seed=3)
    path = next((tmp_path / "rows").rglob("rows-0.arrow"))
    with pytest.raises(tq.StorageError, match="damaged: rows-0.arrow is not as it was written"):
        flip(path, place)
        _core.Stage.open(path.parent, path.parent.name)
    assert loaded(session, sql, shuffle="global", shuffle_seed=3) == rows
    assert loaded(session, sql, shuffle="global", shuffle_seed=3) == rows


def test_rows_are_verified_anew_after_an_hour(session, tmp_path, monkeypatch):
    """Decay of a disk changes no time of a file: a run that begins later reads everything once."""
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    sql = "SELECT x, y, s FROM t"
    rows = loaded(session, sql, shuffle="global", shuffle_seed=3)
    path = next((tmp_path / "rows").rglob("rows-0.arrow"))
    verified = path.with_name("verified")
    flip(path, rows_places)
    time.sleep(0.02)
    verified.write_bytes(b"")
    # Marked as whole, it is taken for whole; an hour later it is not.
    assert _core.Stage.open(path.parent, path.parent.name).num_rows == ROWS
    hour = time.time() - 4000
    for name in (verified, path.with_name("manifest.json")):
        os.utime(name, (hour, hour))
    assert loaded(session, sql, shuffle="global", shuffle_seed=3) == rows


@pytest.mark.parametrize(("old", "new"), [('"block":0', '"block":1'), ('"rows":', '"rows":1')])
def test_a_manifest_of_rows_that_was_changed_is_not_read(session, tmp_path, monkeypatch, old, new):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    sql = "SELECT x, y, s FROM t"
    rows = loaded(session, sql, shuffle="global", shuffle_seed=3)
    manifest = next((tmp_path / "rows").rglob("manifest.json"))
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new, 1))
    with pytest.raises(tq.StorageError, match=r"damaged: manifest\.json is not as it was written"):
        _core.Stage.open(manifest.parent, manifest.parent.name)
    assert loaded(session, sql, shuffle="global", shuffle_seed=3) == rows
