"""Promise 2 (docs/promises.md): counts of output rows per split are exact, and read no more than they must: metadata, statistics and
the cache first, then the columns that decide."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from split_counting import count, executed, plan_of
from stored_bytes import chunk_bytes, split_bytes
from tensorquery.distributed.topology import Topology
from tensorquery.metrics import progress
from tensorquery.sharding import row_counts
from tensorquery.sharding.row_counts import SplitCounts

# ------------------------------------------------------------------------------------------------
# Exact.

ROWS = 3000


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory):
    """Tables of every format with equal rows."""
    root = tmp_path_factory.mktemp("everywhere")
    rng = np.random.default_rng(11)
    table = support.random_table(rng, ROWS, ["i32"], nulls=0.2)
    words = [None if row % 5 == 0 else f"row {row}" for row in range(ROWS)]
    table = table.append_column("s", pa.array(words))
    session = tq.Session()
    session.register_parquet(
        "parquet", support.write_parquet(root / "p", table, files=3, row_group=100)
    )
    session.register_csv("csv", support.write_csv(root / "c", table, files=3))
    session.register_csv("gz", support.write_csv(root / "g", table, files=3, compress="gz"))
    small = table.drop(["v"])  # NaN is not JSON
    session.register_json("json", support.write_json(root / "j", small, files=3))
    session.register_json("array", support.write_json(root / "a", small, files=2, array=True))
    session.register_arrow("arrow", support.write_arrow(root / "i", table, files=3))
    session.register_orc("orc", support.write_orc(root / "o", table, files=3))
    session.register_table("memory", table)
    for part in range(3):
        support.write_parquet(root / f"h/part={part}", table.slice(part * 1000, 1000), row_group=99)
    session.register_parquet("hive", str(root / "h"))
    keys = pa.table({"k": [0, 1, 1, 2, None, 9], "name": ["a", "b", "c", "d", "e", "f"]})
    session.register_table("keys", keys)
    return session


TABLES = ["parquet", "csv", "gz", "json", "array", "arrow", "orc", "memory", "hive"]
QUERIES = [
    "SELECT * FROM {t}",
    "SELECT id + 1 AS next FROM {t}",
    "SELECT s FROM {t} WHERE id < 0",
    "SELECT s FROM {t} WHERE id >= 2970",
    "SELECT s FROM {t} WHERE id < 1500",
    "SELECT s FROM {t} WHERE id >= 0",
    "SELECT id FROM {t} WHERE i32 > 0 AND s IS NOT NULL",
    "SELECT id FROM {t} WHERE i32 IS NULL",
    "SELECT {t}.s, keys.name FROM {t} JOIN keys ON {t}.k = keys.k",
    "SELECT {t}.s, keys.name FROM {t} LEFT JOIN keys ON {t}.k = keys.k",
    "SELECT s FROM {t} WHERE EXISTS (SELECT 1 FROM keys WHERE keys.k = {t}.k)",
    "SELECT s FROM {t} WHERE NOT EXISTS (SELECT 1 FROM keys WHERE keys.k = {t}.k) AND id > 99",
    "SELECT a.s FROM {t} AS a JOIN {t} AS b ON a.id = b.i32 OR a.id + 5 = b.id",
    "SELECT id FROM {t} WHERE k = 3 UNION ALL SELECT id FROM {t}",
    "SELECT unnest(make_array(id, k)) AS x FROM {t} WHERE k > 2",
    "SELECT id, k FROM {t} WHERE k > 3 UNION ALL SELECT k + 1 AS id, k FROM keys",
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("sql", QUERIES)
def test_counts_are_what_reading_gives(everywhere, table, sql):
    plan = plan_of(everywhere.sql(sql.format(t=table)), 300)
    found = count(plan)
    assert found.rows == executed(plan)
    assert found.source in ("metadata", "counted")
    assert count(plan).rows == found.rows


@pytest.mark.parametrize(
    "condition", ["v < 100", "v > -100", "NOT (v >= 100)", "v = v", "v IS NOT NULL"]
)
def test_nan_and_null(tmp_path, session, condition):
    """NaN is in no minimum or maximum, a null passes no comparison."""
    v = np.arange(1000) % 50.0
    v[::10] = np.nan
    table = pa.table({"v": pa.array(v, mask=np.arange(1000) % 7 == 0), "id": np.arange(1000)})
    session.register_parquet("t", support.write_parquet(tmp_path / "t", table, row_group=100))
    plan = plan_of(session.sql(f"SELECT id FROM t WHERE {condition}"), 100)
    found = count(plan)
    assert found.rows == executed(plan)
    assert (found.read, found.from_statistics) == (10, 0)


def test_hive_columns_are_constants(everywhere):
    plan = plan_of(everywhere.sql("SELECT s FROM hive WHERE part = 1"), 99)
    assert count(plan) == SplitCounts([99] * 10 + [10], "metadata")
    plan = plan_of(everywhere.sql("SELECT s FROM hive WHERE part = 1 OR id < 198"), 99)
    found = count(plan)
    assert found.rows == executed(plan)
    assert (found.read, found.from_statistics) == (0, 13)


def test_metadata_is_enough_without_a_filter(everywhere, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_CACHE", "/dev/null/nowhere")
    for table in ("parquet", "memory", "hive"):
        found = count(plan_of(everywhere.sql(f"SELECT s FROM {table}")))
        assert found.source == "metadata"
        assert sum(found.rows) == ROWS
    assert count(plan_of(everywhere.sql("SELECT s FROM csv WHERE false"))).rows == []


def test_a_damaged_file_is_named(tmp_path, session):
    folder = Path(support.write_parquet(tmp_path / "t", pa.table({"x": np.arange(1000)}), files=2))
    session.register_parquet("t", str(folder))
    plan = plan_of(session.sql("SELECT x FROM t WHERE x % 2 = 0"))
    file = folder / "001.parquet"
    stamp, data = file.stat(), bytearray(file.read_bytes())
    data[100:300] = b"\xff" * 200
    file.write_bytes(data)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        count(plan)


# ------------------------------------------------------------------------------------------------
# Little is read.

FILES, GROUPS, GROUP = 2, 10, 5000


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Root, URL and traffic of two files over a network; column chunks of 40 kB each."""
    root = tmp_path_factory.mktemp("served")
    rows = FILES * GROUPS * GROUP
    table = pa.table({name: np.arange(rows) for name in ["id", "x", "y", "z"]})
    support.write_parquet(
        root, table, files=FILES, row_group=GROUP, use_dictionary=False, compression="none"
    )
    log, brake = tmp_path_factory.mktemp("log") / "requests", root / "brake"
    with support.serve(root, log, brake) as url:
        yield root, url, support.Traffic(log), brake


def over_network(url, sql, rows=GROUP):
    session = tq.Session()
    session.register_parquet("t", [f"{url}/{number:03}.parquet" for number in range(FILES)])
    session.register_table("few", pa.table({"id": [1, 6000, 99_999]}))
    return plan_of(session.sql(sql), rows)


@pytest.mark.slow
def test_row_groups_that_match_fully_are_not_read(served):
    root, url, traffic, _ = served
    traffic.take()
    found = count(over_network(url, "SELECT x FROM t WHERE id >= 20000"))
    assert found.rows == [GROUP] * 16
    assert (found.read, found.from_statistics) == (0, 16)
    footers, data = split_bytes(root, traffic.take())
    assert footers > 0
    assert data == 0


@pytest.mark.slow
def test_only_row_groups_in_doubt_and_columns_that_decide_are_read(served):
    root, url, traffic, _ = served
    plan = over_network(url, "SELECT x, y, z FROM t WHERE id >= 22000 AND id < 60001")
    traffic.take()
    found = count(plan)
    assert found.rows == [3000, *[GROUP] * 7, 1]
    assert (found.read, found.from_statistics) == (2, 7)
    _, data = split_bytes(root, traffic.take())
    one = chunk_bytes(root, [0], [4], ["id"])
    # The second file's row group is cut to the page that holds the row where there is a page index.
    assert one < data <= 2.1 * one


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x, y, few.id FROM t JOIN few ON t.id = few.id",
        "SELECT x, y, few.id AS other FROM t LEFT JOIN few ON t.id = few.id",
        "SELECT x, y FROM t WHERE EXISTS (SELECT 1 FROM few WHERE few.id = t.id)",
        "SELECT x, unnest(make_array(y, y)) AS two FROM t WHERE id % 3 = 1",
    ],
)
def test_joins_and_unnest_read_the_columns_that_decide(served, sql):
    root, url, traffic, _ = served
    plan = over_network(url, sql)
    traffic.take()
    found = count(plan)
    _, data = split_bytes(root, traffic.take())
    one = chunk_bytes(root, range(FILES), range(GROUPS), ["id"])
    # Unnesting computes the lists that it counts.
    assert data <= (2.1 if "unnest" in sql else 1.1) * one
    assert found.rows == executed(plan)


@pytest.mark.slow
def test_ctrl_c_ends_the_counting(served):
    """The server, which is silent, tells when it was asked; the counting would wait for half a minute, and then ask again."""
    _, url, _, brake = served
    plan = over_network(url, "SELECT x FROM t WHERE y % 2 = 0")
    met, gave_up = brake.with_name(f"{brake.name}.met"), threading.Event()

    def interrupt():
        while not met.exists() and not gave_up.wait(0.01):
            pass
        if met.exists():
            os.kill(os.getpid(), signal.SIGINT)

    brake.touch()
    thread = threading.Thread(target=interrupt)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            count(plan)
        assert time.monotonic() - start < 25
    finally:
        gave_up.set()
        thread.join()
        brake.unlink()
        met.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------
# The cache.

_PROGRAM = """
import json, sys
import tensorquery as tq
from tensorquery.sharding.row_counts import split_counts
from tensorquery.distributed.topology import Topology
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.shards import plan_splits
paths, sql = json.loads(sys.argv[1]), sys.argv[2]
session = tq.Session()
session.register_parquet("t", paths)
plan = plan_splits(session.sql(sql)._core, "128MiB", 5000)
found = split_counts(plan, topology=Topology(0, 1), threads=2)
print(json.dumps([found.source, found.read, sum(found.rows)]))
"""


def in_a_process(paths, sql):
    command = [sys.executable, "-c", _PROGRAM, json.dumps(paths), sql]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    assert run.stderr == ""
    return json.loads(run.stdout)


@pytest.mark.slow
def test_a_second_process_reads_nothing(served):
    root, url, traffic, _ = served
    paths, sql = [f"{url}/000.parquet", f"{url}/001.parquet"], "SELECT x FROM t WHERE y % 2 = 0"
    assert in_a_process(paths, sql) == ["counted", 20, 50_000]
    traffic.take()
    assert in_a_process(paths, sql) == ["cache", 0, 50_000]
    _, data = split_bytes(root, traffic.take())
    assert data == 0
    assert in_a_process(paths, sql.replace("= 0", "= 1")) == ["counted", 20, 50_000]


@pytest.fixture
def half(tmp_path):
    """Makes a plan over files that may change, with a filter that keeps half."""

    def make():
        session = tq.Session()
        session.register_parquet("t", str(tmp_path / "t"))
        return plan_of(session.sql("SELECT x FROM t WHERE x % 2 = 0"), 100)

    support.write_parquet(tmp_path / "t", pa.table({"x": np.arange(1000)}), row_group=100)
    return make


def cache_files():
    return sorted(row_counts.cache_folder().glob("*.json"))


def test_a_changed_file_is_counted_again(half, tmp_path):
    assert count(half()).source == "counted"
    assert count(half()).source == "cache"
    support.write_parquet(tmp_path / "t", pa.table({"x": np.arange(1000) * 2}), row_group=100)
    assert count(half()) == SplitCounts([100] * 10, "counted", 10, 0)
    assert len(cache_files()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace("50", "51", 1),
        lambda text: text.replace("50, ", "", 1),
        lambda text: text.replace("50", "-50", 1),
        lambda text: text.replace("50", "true", 1),
        lambda text: text.replace("50", "50.0", 1),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"fingerprint": "', '"fingerprint": "0'),
        lambda text: text + "\0",
    ],
)
def test_a_damaged_cache_file_is_replaced(half, damage):
    good = count(half())
    [path] = cache_files()
    text = path.read_text()
    path.write_text(damage(text))
    assert path.read_text() != text
    assert count(half()) == good
    assert path.read_text() == text
    assert count(half()).source == "cache"


@pytest.mark.parametrize("home", ["file", "no home", "folder in place of the file"])
def test_an_unusable_cache_is_a_warning_once(half, monkeypatch, tmp_path, caplog, home):
    if home == "file":
        (tmp_path / "cache").write_text("not a folder")
        monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path / "cache"))
    elif home == "no home":
        monkeypatch.delenv("TENSORQUERY_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        (row_counts.cache_folder() / f"{half().fingerprint}.json").mkdir(parents=True)
    monkeypatch.setattr(row_counts, "_warned_of_cache", False)
    with caplog.at_level(logging.WARNING, logger="tensorquery"):
        for _ in range(2):
            assert count(half()) == SplitCounts([50] * 10, "counted", 10, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "TENSORQUERY_CACHE" in caplog.text
    if home != "no home":
        leftovers = list(Path(os.environ["TENSORQUERY_CACHE"]).rglob("*.tmp"))
        assert leftovers == []


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setenv("TENSORQUERY_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert row_counts.cache_folder() == tmp_path / "home/.cache/tensorquery/counts"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert row_counts.cache_folder() == tmp_path / "xdg/tensorquery/counts"
    monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path / "own"))
    assert row_counts.cache_folder() == tmp_path / "own/counts"


def test_the_cache_keeps_the_files_used_last(half, monkeypatch):
    monkeypatch.setattr(row_counts, "_CACHE_FILES", 3)
    folder = row_counts.cache_folder()
    folder.mkdir(parents=True)
    old = [f"1-{age:064x}" for age in range(5)]
    ours = json.dumps({"version": 1, "fingerprint": "1-0", "rows": [], "checksum": 0})
    # Of somebody else's, nothing goes: other names, other content, links.
    theirs = ["config", "1-0", f"1-{9:064x}", f"1-{8:064x}"]
    for name in (*old, *theirs):
        (folder / f"{name}.json").write_text(ours if name in old else '{"mine": 1}')
    (folder / f"{theirs[3]}.json").unlink()
    (folder / f"{theirs[3]}.json").symlink_to(folder / f"{old[0]}.json")
    for age, name in enumerate((*old, *theirs)):
        os.utime(folder / f"{name}.json", (1e9 - age, 1e9 - age), follow_symlinks=False)
    plan = half()
    count(plan)
    assert {path.stem for path in cache_files()} == {plan.fingerprint, *old[:2], *theirs}
    os.utime(folder / f"{plan.fingerprint}.json", (1.0, 1.0))
    assert count(plan).source == "cache"
    assert (folder / f"{plan.fingerprint}.json").stat().st_mtime > 1e9


# ------------------------------------------------------------------------------------------------
# Progress.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_or_where_asked_for(half, monkeypatch):
    monkeypatch.setattr(progress, "_SHOW_AFTER", 0.0)
    shown = {}
    for stream in (io.StringIO(), Terminal()):
        for asked in (False, True):
            monkeypatch.setenv("TENSORQUERY_CACHE", f"/dev/null/{len(shown)}")
            monkeypatch.setattr(sys, "stderr", stream)
            count(half(), show_progress=asked)
            shown[stream.isatty(), asked] = stream.getvalue()
            stream.seek(0)
            stream.truncate()
    assert shown[False, False] == ""
    assert shown[True, False].startswith("\rcounting rows: 1 of 10 splits, 50 rows")
    assert shown[True, False].endswith("10 of 10 splits, 500 rows\x1b[K\n")
    # A bar of tqdm, on a terminal or not.
    for terminal in (False, True):
        last = shown[terminal, True].split("\r")[-1]
        assert last.startswith("counting rows: 100%")
        assert "10/10 [" in last
        assert ", 500 rows]" in last
    for number, asked in enumerate((True, "all")):
        monkeypatch.setenv("TENSORQUERY_CACHE", f"/dev/null/second{number}")
        monkeypatch.setattr(sys, "stderr", stream := Terminal())
        count(half(), topology=Topology(1, 2, 1, 2), show_progress=asked)
        assert ("counting rows" in stream.getvalue()) == (asked == "all")


def test_what_progress_raises_ends_the_counting(half):
    def stop(splits, rows):
        raise LookupError(f"{splits} splits, {rows} rows")

    with pytest.raises(LookupError, match="1 splits, 50 rows"):
        half().counter().count([3, 4, 5], 1, stop)
    with pytest.raises(tq.ConfigError, match="split 10 does not exist; the plan has 10"):
        half().counter().count([10], 1)


def test_ranks_without_a_process_group_count_alone(half):
    found = [count(half(), topology=Topology(rank, 2, rank, 2)) for rank in range(2)]
    # On one machine the second finds what the first wrote down.
    assert [one.source for one in found] == ["counted", "cache"]


@pytest.mark.slow
@pytest.mark.parametrize("remainder", ["even", "drop", "pad", "uneven"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_rows_of_an_epoch_are_known_where_its_last_batch_is_dropped_or_filled(
    tmp_path, remainder, workers
):
    pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "t.parquet", row_group_size=100)
    loader, dataset = tq.create_dataloader(
        path=tmp_path,
        filters="id % 3 = 0",
        batch_size=128,
        remainder=remainder,
        num_workers=workers,
        output_format="numpy",
    )
    sizes = [len(batch["id"]) for batch in loader]
    assert dataset.num_rows == sum(sizes)
    if remainder != "uneven":
        assert len(loader) == len(sizes)
