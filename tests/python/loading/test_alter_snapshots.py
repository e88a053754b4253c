"""Promises 1 and 6 (docs/promises.md): an epoch goes on at a newer snapshot of an Iceberg table or version of a Delta table where
nothing moves the delivered rows to other files, and each row of it comes once; else that is refused by name."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq
from iceberg_lakes import lake_of, sample
from iceberg_servers import fresh

pytestmark = pytest.mark.slow

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def lake(request):
    return lake_of("sqlite", request)


@pytest.fixture
def iceberg(lake):
    """A table of six files with ten rows each, and a query over it that is planned now."""
    name = f"{fresh()}.t"
    lake.make(name, sample(), files=6)

    def query():
        session = tq.Session()
        session.register_iceberg("lake", lake.properties)
        return session.sql(f"SELECT id FROM lake.{name}")

    return lake.table(name), query


def loader_of(query, **options):
    options = {"rank": 0, "world_size": 1, "batch_size": 8, **options}
    return tq.create_dataloader(query, output_format="dict", **options)[0]


def received_with(query, commit, **options):
    """The rows of an epoch before and after a commit with its refresh, the report, and a state after that."""
    loader = loader_of(query, **options)
    first, rest, report, state = [], [], None, None
    for step, batch in enumerate(loader, start=1):
        (first if report is None else rest).extend(batch["id"])
        if step == 2:
            commit()
            report = loader.alter(refresh=True)
        if step == 4:
            state = json.loads(json.dumps(loader.state_dict()))
            at_4 = len(first) + len(rest)
    return first, rest, report, (state, at_4)


@pytest.mark.parametrize("shuffle", [False, True])
def test_appended_rows_come_in_the_same_epoch(iceberg, shuffle):
    table, query = iceberg
    before = query()
    first, rest, report, (state, at_4) = received_with(
        before, lambda: table.append(sample(20, start=60)), shuffle=shuffle
    )
    assert sorted(first + rest) == list(range(80))
    [source] = report.sources
    assert (report.step, source.delivered, source.left, source.new) == (2, 16, 64, 20)
    # The state names the snapshot: the query of before will do, on another topology too.
    found = (first + rest)[:at_4]
    for rank in range(2):
        again = loader_of(before, shuffle=shuffle, rank=rank, world_size=2)
        again.load_state_dict(state)
        found += support.flat(batch["id"] for batch in again)
    assert sorted(found) == list(range(80))
    assert [entry["change"] for entry in state["altered"]["log"]] == ["refresh"]


def test_deleted_rows_do_not_come_any_more(iceberg):
    table, query = iceberg
    loader = loader_of(query())
    running = iter(loader)
    found = [next(running)["id"] for _ in range(2)]
    touched = {row // 10 for row in support.flat(found)}
    whole, half = [number for number in range(6) if number not in touched][:2]
    # One file goes, and another, of which nothing was delivered, is written anew.
    gone = {*range(whole * 10, whole * 10 + 10), *range(half * 10, half * 10 + 5)}
    table.delete(f"id in ({', '.join(map(str, gone))})")
    assert loader.alter(refresh=True).left == 60 - 16 - 15
    assert sorted(support.flat(found + [batch["id"] for batch in running])) == sorted(
        set(range(60)) - gone
    )


def test_a_table_that_is_emptied_ends_the_epoch(iceberg):
    table, query = iceberg
    loader = loader_of(query())
    running = iter(loader)
    next(running)
    table.delete()
    assert loader.alter(refresh=True).left == 0
    assert list(running) == []
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("move", ["compaction", "update"])
def test_rows_that_moved_to_other_files_are_refused(iceberg, move):
    table, query = iceberg
    loader = loader_of(query())
    running = iter(loader)
    found = [next(running)["id"] for _ in range(2)]
    if move == "compaction":
        table.overwrite(table.scan().to_arrow())
    else:
        table.delete(f"id = {found[0][0]} or id = {found[1][-1]}")
    with pytest.raises(
        tq.ConfigError,
        match="files of query '0' with delivered rows are gone .* compaction",
    ):
        loader.alter(refresh=True)
    # As if nothing had been asked for.
    assert sorted(support.flat(found + [batch["id"] for batch in running])) == list(range(60))
    # Between two epochs it is no matter.
    loader.alter(refresh=True)
    assert len(support.flat(batch["id"] for batch in loader)) == (
        60 if move == "compaction" else 58
    )


def test_a_key_finds_rows_that_moved(iceberg):
    table, query = iceberg
    loader = loader_of(query(), shuffle=True)
    running = iter(loader)
    found = [next(running)["id"] for _ in range(3)]
    gone = found[0][0]
    table.delete(f"id = {gone} or id = {gone + 1 if gone < 59 else 0}")
    table.append(sample(20, start=60))
    table.overwrite(table.scan().to_arrow())
    with pytest.raises(tq.ConfigError, match="compaction"):
        loader.alter(refresh=True)
    loader.alter(refresh=True, key="id")
    found = support.flat(found + [batch["id"] for batch in running])
    assert len(found) == len(set(found))
    assert set(range(80)) - {gone, gone + 1 if gone < 59 else 0} <= set(found)


def test_a_filter_narrows_one_snapshot_and_then_it_moves(iceberg):
    table, query = iceberg
    loader = loader_of(query(), shuffle=True)
    running = iter(loader)
    found = support.flat(next(running)["id"] for _ in range(3))
    loader.alter(filters="id >= 30")
    found += next(running)["id"]
    table.append(sample(20, start=60))
    loader.alter(refresh=True)
    found += support.flat(batch["id"] for batch in running)
    assert len(found) == len(set(found))
    assert set(range(30, 80)) <= set(found)


def test_versions_of_delta_tables(tmp_path):
    path = str(tmp_path / "t")

    def write(start, stop, mode="append"):
        deltalake.write_deltalake(path, pa.table({"id": np.arange(start, stop)}), mode=mode)

    for start in range(0, 60, 20):
        write(start, start + 20)
    session = tq.Session()
    session.register_delta("t", path)
    query = session.sql("SELECT id FROM t")
    first, rest, report, (state, at_4) = received_with(query, lambda: write(60, 80), shuffle=True)
    assert sorted(first + rest) == list(range(80))
    assert report.sources[0].new == 20
    again = loader_of(query, shuffle=True)
    again.load_state_dict(state)
    found = (first + rest)[:at_4] + support.flat(batch["id"] for batch in again)
    assert sorted(found) == list(range(80))

    loader = loader_of(query)
    running = iter(loader)
    next(running)
    deltalake.DeltaTable(path).optimize.compact()
    with pytest.raises(tq.ConfigError, match=r"compaction \(OPTIMIZE"):
        loader.alter(refresh=True)
    assert len(list(itertools.islice(running, 100))) > 1
