"""Promise 6 (docs/promises.md): cached bytes are the store's bytes. A second read asks the store for nothing, a
changed file is never read from the cache, and damage to the folder costs requests and no row."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import support
import tensorquery as tq
import torchless
from effort import METHODS

FILES, ROWS = 4, 8000


def table_of(seed=5, rows=ROWS):
    rng = np.random.default_rng(seed)
    return pa.table({"id": np.arange(rows), **{f"x{i}": rng.random(rows) for i in range(4)}})


@pytest.fixture
def served(tmp_path):
    """The folder of four Parquet files, their URL, and what their server sends."""
    root = tmp_path / "served"
    support.write_parquet(
        root, table_of(), files=FILES, row_group=500, use_dictionary=False, compression="none"
    )
    log = tmp_path / "requests"
    with support.serve(root, log) as url:
        yield root, url, support.Traffic(log)


def paths_of(url, ending="parquet"):
    return [f"{url}/{number:03}.{ending}" for number in range(FILES)]


def rows_in(batches):
    return sorted(support.flat(support.ids_of(batches)))


def loader_of(url, folder, **options):
    options = {"batch_size": 64, "local_cache": folder, "rank": 0, "world_size": 1, **options}
    return tq.create_dataloader(path=paths_of(url), **options)


def stored(folder):
    """Bytes of all files below a folder, which others may be removing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


def entries(folder):
    return [path for path in Path(folder, "ranges-1").glob("??/*/*") if path.is_file()]


@pytest.mark.slow
def test_the_second_epoch_and_the_next_run_ask_for_no_data(served, tmp_path):
    _, url, traffic = served
    folder = tmp_path / "cache"
    loader, dataset = loader_of(url, folder, shuffle=True)
    assert rows_in(loader) == list(range(ROWS))
    assert traffic.take()
    first = dataset.metrics()
    assert first["bytes_read"] > 0
    # Another order, other threads: the same ranges.
    assert rows_in(loader) == list(range(ROWS))
    assert traffic.take() == []
    second = dataset.metrics()
    assert (second["requests"], second["bytes_read"]) == (0, 0)
    assert second["cache_hits"] > 0
    assert second["cache_bytes"] >= ROWS * 5 * 8
    # A session of its own has only the folder in common: footers are there, too.
    again, _ = loader_of(url, folder, columns=["id", "x3"], filters="x1 >= 0")
    assert rows_in(again) == list(range(ROWS))
    assert traffic.take() == []


@pytest.mark.slow
@pytest.mark.parametrize("start", METHODS)
def test_worker_processes_share_the_folder(served, tmp_path, start):
    _, url, traffic = served
    loader, _ = loader_of(
        url, tmp_path / "cache", num_workers=3, multiprocessing_context=start, shuffle=True
    )
    assert rows_in(loader) == list(range(ROWS))
    assert traffic.take()
    assert rows_in(loader) == list(range(ROWS))
    assert traffic.take() == []


@pytest.mark.slow
def test_the_folder_may_be_named_from_where_one_stands(served, tmp_path, monkeypatch):
    _, url, traffic = served
    monkeypatch.chdir(tmp_path)
    loader, _ = loader_of(url, "cache", num_workers=1, multiprocessing_context="forkserver")
    assert rows_in(loader) == list(range(ROWS))
    assert entries(tmp_path / "cache")
    traffic.take()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert rows_in(loader) == list(range(ROWS))
    assert traffic.take() == []
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json", "gz", "orc", "arrow"])
def test_every_format_is_kept(tmp_path, kind):
    root, folder, log = tmp_path / "served", tmp_path / "cache", tmp_path / "requests"
    write, options, ending = {
        "csv": (support.write_csv, {}, "csv"),
        "json": (support.write_json, {}, "json"),
        "gz": (support.write_csv, {"compress": "gz"}, "csv.gz"),
        "orc": (support.write_orc, {}, "orc"),
        "arrow": (support.write_arrow, {}, "arrow"),
    }[kind]
    write(root, table_of(), files=FILES, **options)
    with support.serve(root, log) as url:
        traffic = support.Traffic(log)
        asked = []
        # Readers that look at the beginning of a file only leave what they had read, in the background: the third run
        # finds all of it, and mostly the second.
        while len(asked) < 3 and (not asked or asked[-1]):
            loader, _ = tq.create_dataloader(
                path=paths_of(url, ending), local_cache=folder, split_bytes="20kB", batch_size=64
            )
            assert rows_in(loader) == list(range(ROWS))
            asked.append(sum(stop - start for _, start, stop in traffic.take()))
        assert asked[0] > 0
        assert asked[-1] == 0, asked


@pytest.mark.slow
def test_a_changed_file_is_never_read_from_the_cache(served, tmp_path):
    root, url, _ = served
    folder = tmp_path / "cache"
    session = tq.Session(local_cache=folder)
    session.register_parquet("t", paths_of(url))
    assert (
        session.sql("SELECT count(*) AS n, min(x0) AS x FROM t").to_arrow()["n"][0].as_py() == ROWS
    )
    loader, _ = tq.create_dataloader("SELECT id FROM t", session=session)
    assert rows_in(loader) == list(range(ROWS))
    # Other rows in a file of equal size.
    before = os.stat(root / "000.parquet").st_size
    part = table_of().slice(0, ROWS // FILES)
    part = part.set_column(0, "id", pa.array(np.arange(ROWS // FILES) + 10**6))
    pq.write_table(
        part, root / "000.parquet", row_group_size=500, use_dictionary=False, compression="none"
    )
    assert os.stat(root / "000.parquet").st_size == before
    # Columns that are not here yet cannot be had of the version that was pinned.
    with pytest.raises(tq.DataError, match=r"000\.parquet changed after the query was planned"):
        session.sql("SELECT x2 FROM t").to_arrow()
    session.register_parquet("t", paths_of(url))
    fresh, _ = tq.create_dataloader("SELECT id FROM t", session=session)
    changed = [*range(ROWS // FILES, ROWS), *range(10**6, 10**6 + ROWS // FILES)]
    assert rows_in(fresh) == changed
    assert sorted(session.sql("SELECT id FROM t").to_arrow()["id"].to_pylist()) == changed


def test_iceberg_tables_are_kept(cloud, tmp_path):
    properties = cloud.properties()
    catalog = SqlCatalog(
        "c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse="s3://lake/cached", **properties
    )
    catalog.create_namespace("ns")
    made = catalog.create_table("ns.t", schema=table_of().schema)
    for part in support.cut(table_of(), FILES):
        made.append(part)
    counts = []
    for _ in range(2):
        since = len(cloud.requests())
        session = tq.Session(local_cache=tmp_path / "cache")
        session.register_iceberg_table("t", made.metadata_location, properties=properties)
        loader, _ = tq.create_dataloader(table="t", session=session, batch_size=64)
        assert rows_in(loader) == list(range(ROWS))
        requests = [request["path"] for request in cloud.requests()[since:]]
        counts.append(sum("/data/" in path for path in requests))
        assert any("/metadata/" in path for path in requests)
    assert counts[0] > 0
    assert counts[1] == 0


@pytest.mark.slow
def test_a_damaged_folder_costs_requests_and_no_row(served, tmp_path):
    _, url, traffic = served
    folder = tmp_path / "cache"
    loader, _ = loader_of(url, folder)
    rng = random.Random(3)
    for turn in range(6):
        assert rows_in(loader) == list(range(ROWS))
        assert traffic.take() or turn == 0
        found = sorted(entries(folder))
        assert found
        for path in rng.sample(found, len(found) // 2):
            data = bytearray(path.read_bytes())
            match turn % 4:
                case 0:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                case 1:
                    data = data[: rng.randrange(len(data))]
                case 2:
                    data = bytes(len(data))
                case 3:
                    data = rng.choice(found).read_bytes()
                    path.unlink()
            path.write_bytes(data)
        (folder / "ranges-1" / "used").write_bytes(rng.randbytes(rng.randrange(40)))


READER = """
import sys
import tensorquery as tq
url, folder, size, seed, epochs, *limit = sys.argv[1:]
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), int(limit[0])))
paths = [f"{url}/{number:03}.parquet" for number in range(4)]
loader, dataset = tq.create_dataloader(
    path=paths, local_cache=folder, local_cache_size=size, batch_size=64, shuffle=True,
    shuffle_seed=int(seed), rank=0, world_size=1, split_rows=500, output_format="numpy",
)
print("ready", flush=True)
for _ in range(int(epochs)):
    ids = sorted(i for batch in loader for i in batch["id"].tolist())
    assert ids == list(range(8000)), len(ids)
print("right", flush=True)
"""


def reader(url, folder, size, seed, epochs=1, *limit):
    command = [
        sys.executable,
        "-c",
        torchless.HIDDEN + READER,
        url,
        folder,
        size,
        seed,
        epochs,
        *limit,
    ]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_many_processes_that_are_killed_share_a_small_folder(served, tmp_path):
    _, url, _ = served
    folder, limit = tmp_path / "cache", 150_000
    rng = random.Random(7)
    # A row group is 20 kB: the limit holds half of the table.
    readers = [reader(url, folder, limit, seed, 6) for seed in range(8)]
    for victim in readers[:4]:
        assert victim.stdout.readline() == "ready\n"
        time.sleep(rng.random() / 5)
        victim.send_signal(signal.SIGKILL)
    for victim in readers[:4]:
        victim.communicate(timeout=300)
        assert victim.returncode in (-signal.SIGKILL, 0)
    for survivor in readers[4:]:
        out, err = survivor.communicate(timeout=300)
        assert survivor.returncode == 0, err
        assert out.endswith("right\n")
        assert "Warning" not in err
    assert entries(folder)
    assert stored(folder) <= limit + 64 * 1024
    # Entries that killed processes left are useful and harmless.
    with reader(url, folder, limit, 99) as last:
        out, err = last.communicate(timeout=300)
    assert (last.returncode, out.endswith("right\n")) == (0, True), err
    assert stored(folder) <= limit + 64 * 1024


@pytest.mark.slow
def test_what_a_killed_process_was_writing_is_removed_later(served, tmp_path):
    _, url, _ = served
    folder = tmp_path / "cache"
    rows_in(loader_of(url, folder)[0])
    left = folder / "ranges-1" / "tmp" / "1-1-1"
    left.write_bytes(b"x" * 1000)
    rows_in(loader_of(url, folder)[0])
    # Somebody may be writing it.
    assert left.exists()
    os.utime(left, (time.time() - 3600,) * 2)
    loader_of(url, folder)
    assert not left.exists()


def warned(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if "local_cache" in str(each.message)]


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_costs_one_warning(served):
    _, url, traffic = served
    found = []

    def run():
        loader, _ = loader_of(url, "/proc/self/ranges")
        for _ in range(2):
            found.append(rows_in(loader))
            assert traffic.take()

    messages = warned(run)
    assert found == [list(range(ROWS))] * 2
    assert len(messages) == 1, messages
    assert "/proc/self/ranges" in messages[0]
    assert "data comes from the store instead" in messages[0]


@pytest.mark.slow
def test_a_folder_that_can_only_be_read_is_read(served, tmp_path):
    _, url, traffic = served
    folder = tmp_path / "cache"
    loader, _ = loader_of(url, folder, columns=["id"])
    assert rows_in(loader) == list(range(ROWS))
    traffic.take()
    # For root a folder without the right to write is none; one where no file can be made is.
    temporary = folder / "ranges-1" / "tmp"
    temporary.rmdir()
    temporary.write_bytes(b"")
    found = []

    def run():
        for columns in (["id"], ["id", "x0"]):
            loader, _ = loader_of(url, folder, columns=columns)
            found.append(rows_in(loader))
            found.append(traffic.take())

    messages = warned(run)
    assert found[0] == found[2] == list(range(ROWS))
    assert found[1] == []
    assert found[3]
    # Each loader has a session of its own.
    assert len(messages) == 2, messages


@pytest.mark.slow
def test_a_full_disk_costs_one_warning(served, tmp_path):
    """Files may grow to 8 kB: entries of this table, 20 kB each, cannot be written."""
    _, url, _ = served
    with reader(url, tmp_path / "cache", "1GB", 1, 3, 8000) as full:
        out, err = full.communicate(timeout=300)
    assert (full.returncode, out) == (0, "ready\nright\n"), err
    assert err.count("UserWarning: local_cache") == 1, err
    assert list((tmp_path / "cache" / "ranges-1" / "tmp").iterdir()) == []


@pytest.mark.slow
def test_the_folder_vanishes_under_a_running_job(served, tmp_path):
    import shutil

    _, url, _ = served
    folder = tmp_path / "cache"
    loader, _ = loader_of(url, folder)
    assert rows_in(loader) == list(range(ROWS))
    shutil.rmtree(folder)
    found = []
    messages = warned(lambda: found.extend(rows_in(loader)))
    assert found == list(range(ROWS))
    assert len(messages) == 1, messages


@pytest.mark.slow
def test_the_options_say_what_they_are(served, tmp_path):
    _, url, _ = served
    session = tq.Session()
    for options in ({"local_cache": "c"}, {"local_cache_size": "1GB"}):
        with pytest.raises(tq.ConfigError, match=r"write tq\.Session\(local_cache"):
            tq.create_dataloader("SELECT 1", session=session, **options)
    with pytest.raises(tq.ConfigError, match="local_cache"):
        tq.create_dataloader(session.sql("SELECT 1 AS x"), local_cache="c")
    with pytest.raises(tq.ConfigError, match="goes with local_cache="):
        tq.create_dataloader(path=paths_of(url), local_cache_size="1GB")
    with pytest.raises(tq.ConfigError, match="local_cache_size='much'"):
        tq.Session(local_cache=tmp_path, local_cache_size="much")
    for odd, hint in (
        (7, "folder"),
        ("", "folder"),
        ("s3://b/c", "local disk"),
        (__file__, "is a file"),
    ):
        with pytest.raises(tq.ConfigError, match=hint):
            tq.Session(local_cache=odd)
    # Local files are never kept.
    support.write_parquet(tmp_path / "local", table_of(), files=2)
    loader, dataset = tq.create_dataloader(
        path=tmp_path / "local", local_cache=tmp_path / "cache", local_cache_size=10**6
    )
    assert rows_in(loader) == list(range(ROWS))
    assert dataset.metrics()["cache_hits"] == 0
    assert entries(tmp_path / "cache") == []
