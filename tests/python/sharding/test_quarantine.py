"""Promise: with ``on_error="skip"`` unreadable parts are left out and named. All else holds as ever: each good row
once, equal steps, one order, exact resuming. The default raises."""

import json
import os
import shutil
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pytest
from torch.utils.data import DataLoader

import support
import tensorquery as tq
from damaged_tables import (
    GROUP,
    ROWS,
    check_delivered,
    dataset_of,
    numbers,
    query_of,
    read,
    spoil_group,
    spoiled_parquet,
)
from effort import METHODS


@pytest.fixture
def parquet(tmp_path):
    """Three files of ten row groups, one group damaged. Gives the folder, and the ids that are left."""
    return spoiled_parquet(tmp_path / "t")


def test_a_bad_row_group_is_left_out_and_named(parquet):
    folder, left = parquet
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        list(dataset_of(query_of(folder), on_error="raise"))
    with pytest.raises(tq.DataError, match=r"001\.parquet"):
        list(tq.QueryDataset(query_of(folder)))
    dataset = dataset_of(query_of(folder))
    with pytest.warns(
        UserWarning, match=r"1 bad part of 1 file .* 100 rows .*001\.parquet, row group 4"
    ):
        [part] = dataset.quarantined
    assert (part.path, part.unit, part.rows) == (f"{folder}/001.parquet", "row group 4", 100)
    assert "001.parquet" in part.error
    # Once.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert support.flat(support.ids_of(dataset)) == left
        assert dataset.num_rows == len(left)
        assert len(dataset) == -(-len(left) // 64)
    assert dataset.metrics()["quarantined_splits"] == 1
    assert dataset.metrics()["quarantined_rows"] == 100
    assert "quarantined=1" in repr(dataset)
    assert "left out: 1 bad parts" in repr(dataset.shard_plan(2))
    assert dataset.shard_plan().to_dict()["quarantined"] == 1


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_rows": 1000},
        {"shuffle": True},
        {"shuffle": True, "split_rows": 300, "shuffle_buffer_size": 70},
        {"shuffle": "global"},
        {"remainder": "uneven"},
        {"split_strategy": "round_robin"},
        {"split_strategy": support.LastFirst()},
    ],
)
@pytest.mark.parametrize("sql", ["SELECT id, word FROM t", "SELECT id FROM t WHERE id % 3 < 2"])
def test_the_good_rows_come_once_on_all_ranks(parquet, world_size, options, sql):
    folder, left = parquet
    if "WHERE" in sql:
        left = [row for row in left if row % 3 < 2]
    found = read(query_of(folder, sql), world_size, **options)
    if options.get("remainder") == "uneven":
        assert sorted(support.flat(support.flat(found))) == left
    else:
        check_delivered(found, left)
    assert read(query_of(folder, sql), world_size, **options) == found


def test_drop_pad_and_partitions(parquet):
    folder, left = parquet
    dropped = support.flat(support.flat(read(query_of(folder), 3, remainder="drop")))
    assert len(dropped) == len(left) // (3 * 64) * 3 * 64
    assert set(dropped) <= set(left)
    assert len(set(dropped)) == len(dropped)
    padded = read(query_of(folder), 3, remainder="pad")
    assert {len(batch) for rank in padded for batch in rank} == {64}
    assert set(support.flat(support.flat(padded))) == set(left)
    by_two = read(query_of(folder), 2, partitions=4, shuffle=True)
    by_four = read(query_of(folder), 4, partitions=4, shuffle=True, batch_size=32)
    check_delivered(by_two, left)
    for step, (one, other) in enumerate(
        zip(zip(*by_two, strict=True), zip(*by_four, strict=True), strict=True)
    ):
        assert sorted(support.flat(one)) == sorted(support.flat(other)), step


@pytest.mark.slow
@pytest.mark.parametrize("context", METHODS)
@pytest.mark.parametrize("options", [{}, {"assignment": "dynamic", "remainder": "uneven"}])
def test_worker_processes_read_the_good_rows(parquet, context, options):
    folder, left = parquet
    loader, dataset = tq.create_dataloader(
        path=folder,
        on_error="skip",
        num_workers=2,
        batch_size=64,
        multiprocessing_context=context,
        columns=["id"],
        **options,
    )
    with pytest.warns(UserWarning, match="row group 4"):
        delivered = support.flat(support.ids_of(loader))
    assert sorted(delivered) == left
    assert [part.unit for part in dataset.quarantined] == ["row group 4"]


def test_traces_and_exclusions_are_of_the_good_splits(parquet):
    folder, left = parquet
    options = {"split_rows": 1000, "shuffle": True, "shuffle_buffer_size": 500}
    dataset = dataset_of(query_of(folder), **options)
    with pytest.warns(UserWarning, match="row group 4"):
        iterator = iter(dataset)
    [*_, batch] = support.ids_of(next(iterator) for _ in range(9))
    trace = dataset.trace()
    assert len(trace.ranges) > 1
    assert {part.path for part in trace.ranges} <= {f"{folder}/{n:03}.parquet" for n in range(3)}
    [rest] = read(query_of(folder), exclude=trace.ranges, **options)
    assert sorted(support.flat(rest)) == [row for row in left if row not in batch]


@pytest.mark.slow
def test_a_plain_loader_says_what_to_do_first(parquet):
    folder, left = parquet
    dataset = dataset_of(query_of(folder), output_format="torch")
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(tq.ConfigError, match=r"dataset\.quarantined in the training process"):
        next(iter(loader))
    with pytest.warns(UserWarning, match="row group 4"):
        assert len(dataset.quarantined) == 1
    assert sorted(support.flat(support.ids_of(loader))) == left


def test_a_pruned_or_unread_part_is_not_bad(parquet):
    folder, _ = parquet
    for sql in ("SELECT id, word FROM t WHERE id < 1000", "SELECT word FROM t"):
        dataset = dataset_of(query_of(folder, sql))
        assert dataset.quarantined == []
        rows = sum(batch.num_rows for batch in dataset)
        assert rows == (1000 if "WHERE" in sql else ROWS)


def test_nothing_bad_is_the_same_run(tmp_path):
    folder = support.write_parquet(tmp_path / "t", numbers(), files=3, row_group=GROUP)
    careful, plain = dataset_of(query_of(folder)), dataset_of(query_of(folder), on_error="raise")
    iterator = iter(careful)
    support.ids_of([next(iterator), next(iterator)])
    state = careful.state_dict()
    assert state["fingerprint"] == plain.state_dict()["fingerprint"]
    assert "quarantine" not in state["parts"]
    rest = support.flat(support.ids_of(iterator))
    plain.load_state_dict(json.loads(json.dumps(state)))
    assert support.flat(support.ids_of(plain)) == rest
    begun = dataset_of(query_of(folder), on_error="raise")
    iterator = iter(begun)
    support.ids_of([next(iterator), next(iterator)])
    again = dataset_of(query_of(folder))
    again.load_state_dict(begun.state_dict())
    assert support.flat(support.ids_of(again)) == rest


def test_what_the_query_does_is_not_the_files_fault(tmp_path):
    folder = support.write_parquet(tmp_path / "t", numbers(), files=2, row_group=GROUP)
    for sql in (
        "SELECT id, 1 / (id - 150) AS x FROM t",
        "SELECT id, CAST(word AS INT) AS x FROM t",
    ):
        with pytest.raises(tq.DataError):
            list(dataset_of(query_of(folder, sql)))
    with pytest.raises(tq.ConfigError, match="on_error"):
        dataset_of(query_of(folder), on_error="ignore")
    with pytest.raises(tq.ConfigError, match="on_error"):
        tq.create_dataloader(path=folder, on_error=True)


def test_null_policies_still_raise(tmp_path):
    table = numbers(300).append_column(
        "x", pa.array([None if row == 5 else row for row in range(300)])
    )
    folder = support.write_parquet(tmp_path / "t", table)
    dataset = dataset_of(query_of(folder, "SELECT id, x FROM t"), output_format="torch")
    assert dataset.quarantined == []
    with pytest.raises(tq.DataError, match="null"):
        list(dataset)


def test_mixtures(parquet, tmp_path):
    folder, left = parquet
    other = support.write_parquet(tmp_path / "u", numbers(), row_group=GROUP)
    others = spoil_group(f"{other}/000.parquet", 0)
    queries = []
    for name, path in (("t", folder), ("u", other)):
        session = tq.Session()
        session.register_parquet(name, path)
        queries.append(session.sql(f"SELECT id FROM {name}"))
    mixture = tq.mix([(query, 0.5) for query in queries], stop="all")
    found = support.flat(support.flat(read(mixture, 2)))
    assert sorted(found) == sorted([*left, *others])


def test_a_build_side_is_not_left_out(parquet, tmp_path):
    folder, _ = parquet
    good = support.write_parquet(tmp_path / "good", numbers(5 * ROWS), files=2, row_group=GROUP)
    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_parquet("good", good)
    query = session.sql("SELECT good.id FROM good JOIN t ON good.id = t.id")
    with pytest.raises(tq.DataError, match="Parquet error"):
        list(dataset_of(query))


def test_storage_and_changes_still_raise(parquet):
    folder, _ = parquet
    query = query_of(folder)
    path = Path(folder) / "001.parquet"
    kept = path.with_name("kept")
    path.rename(kept)
    with pytest.raises((tq.DataError, tq.StorageError), match="vanished"):
        list(dataset_of(query))
    kept.rename(path)
    shutil.copy(Path(folder) / "002.parquet", path)
    with pytest.raises(tq.DataError, match="changed"):
        list(dataset_of(query))


def test_what_was_good_and_fails_later_raises(parquet):
    folder, _ = parquet
    dataset = dataset_of(query_of(folder))
    with pytest.warns(UserWarning, match="bad part"):
        assert len(dataset.quarantined) == 1
    path = Path(folder) / "002.parquet"
    stamp = path.stat()
    spoil_group(path, 7)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(tq.DataError, match=r"002\.parquet"):
        list(dataset)


def test_where_all_is_bad_nothing_is_delivered(tmp_path):
    folder = support.write_parquet(tmp_path / "t", numbers(GROUP), row_group=GROUP)
    spoil_group(f"{folder}/000.parquet", 0)
    with pytest.raises(tq.DataError, match="every split of the query is bad"):
        list(dataset_of(query_of(folder)))
