"""Promise: DataLoader workers under fork, spawn and forkserver deliver the epoch that the training process would
deliver, also after the parent has used the runtime. A worker plans from data that it is sent: it lists nothing, and
reads the pinned files or names the one that changed."""

import datetime
import decimal
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import support
import tensorquery as tq
from effort import METHODS

ROWS = 900


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 5, "x": np.arange(ROWS) / 4})
    return support.write_parquet(tmp_path / "t", table, files=3, row_group=50)


@pytest.fixture
def query(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_table("names", pa.table({"k": [0, 1, 2], "name": ["a", "b", "c"]}))
    session.register_view("some", "SELECT id, k, x FROM t WHERE id % 3 > 0")
    return session.sql("SELECT s.id, s.x, n.name FROM some s JOIN names n ON s.k = n.k")


def expected(query):
    return sorted(query.to_arrow()["id"].to_pylist())


def delivered(loader):
    return sorted(support.flat(support.ids_of(loader)))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_full_epoch_after_the_parent_used_the_runtime(query, method):
    in_process, dataset = tq.create_dataloader(query, batch_size=32)
    assert delivered(in_process) == expected(query)
    iterator = iter(in_process)
    next(iterator)  # the parent's runtime is busy while the workers are made
    loader, dataset = tq.create_dataloader(
        query, batch_size=32, num_workers=2, shuffle=True, shuffle_buffer_size=100, split_rows=50,
        multiprocessing_context=method, persistent_workers=True, transform=support.with_pid,
    )  # fmt: skip
    orders, pids = [], []
    for _ in range(2):
        batches = list(loader)
        orders.append(support.ids_of(batches))
        pids.append({int(batch["pid"]) for batch in batches})
    assert [sorted(support.flat(order)) for order in orders] == [expected(query)] * 2
    assert orders[0] != orders[1]
    fresh, _ = tq.create_dataloader(
        query, batch_size=32, num_workers=2, shuffle=True, shuffle_buffer_size=100, split_rows=50
    )
    assert support.ids_of(fresh) == orders[0]  # whatever the start method
    assert pids[0] == pids[1]  # persistent
    assert len(pids[0]) == 2
    assert os.getpid() not in pids[0]
    assert dataset.epoch == 2
    assert support.flat(support.ids_of(iterator)) != []  # the parent's own epoch goes on


@pytest.mark.slow
def test_a_users_own_dataloader(query):
    dataset = tq.QueryDataset(query, batch_size=40, rank=0, world_size=1)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert delivered(loader) == expected(query)
    assert delivered(DataLoader(dataset, batch_size=None)) == expected(query)
    dataset.set_epoch(3)
    assert delivered(loader) == expected(query)


@pytest.mark.slow
def test_workers_deliver_what_the_shard_plan_says(query):
    loader, dataset = tq.create_dataloader(
        query,
        batch_size=1000,
        num_workers=3,
        rank=1,
        world_size=2,
        output_format="dict",
        remainder="uneven",
    )
    plan = dataset.shard_plan(num_workers=3)
    rows = [
        {
            row
            for split in plan.splits(1, worker)
            for row in range(split.id * 50, split.id * 50 + 50)
        }
        for worker in range(3)
    ]
    found = [set(batch["id"]) for batch in loader]
    assert len(found) == 3
    assert all(batch and batch <= own for batch, own in zip(found, rows, strict=True))


@pytest.mark.slow
def test_transform_and_collate_fn_run_in_the_worker(query):
    loader, _ = tq.create_dataloader(
        query, batch_size=64, num_workers=2, transform=support.with_pid
    )
    pids = {int(batch["pid"]) for batch in loader}
    assert len(pids) == 2
    assert os.getpid() not in pids
    loader, _ = tq.create_dataloader(
        query, batch_size=64, num_workers=1, collate_fn=support.ids_and_pid
    )
    batches = list(loader)
    assert sorted(support.flat(ids for ids, _ in batches)) == expected(query)
    assert os.getpid() not in {pid for _, pid in batches}
    loader, _ = tq.create_dataloader(query, batch_size=64, collate_fn=support.ids_and_pid)
    assert {pid for _, pid in loader} == {os.getpid()}


def test_collate_fn_gets_what_transform_returned(query):
    loader, _ = tq.create_dataloader(
        query, transform=lambda batch: batch["x"] + 1, collate_fn=lambda x: float(x.min())
    )
    assert min(loader) == 1 + min(query.to_arrow()["x"].to_pylist())


@pytest.mark.parametrize("option", ["transform", "collate_fn"])
def test_what_cannot_be_called_is_refused(query, option):
    with pytest.raises(tq.ConfigError, match=option):
        tq.create_dataloader(query, **{option: 3})


def every_kind():
    rows = 23
    numbers = np.arange(rows)
    holes = [None if i % 4 == 1 else float(i) for i in range(rows)]
    return pa.table(
        {
            "id": numbers,
            "i8": pa.array(numbers - 11, pa.int8()),
            "u16": pa.array(numbers, pa.uint16()),
            "f16": pa.array(numbers.astype(np.float16)),
            "f32": pa.array(numbers / 3, pa.float32()),
            "flag": numbers % 2 == 0,
            "day": pa.array([datetime.date(2026, 1, 1 + i) for i in range(rows)]),
            "at": pa.array(numbers * 10**6, pa.timestamp("us")),
            "price": pa.array([decimal.Decimal(i) / 4 for i in range(rows)], pa.decimal128(9, 2)),
            "s": [f"text {i % 5}" for i in range(rows)],
            "raw": [bytes([i]) * (i % 3) for i in range(rows)],
            "code": pa.array([f"c{i % 4}" for i in range(rows)]).dictionary_encode(),
            "vector": pa.array([[i, i + 1, i + 2] for i in range(rows)], pa.list_(pa.float32(), 3)),
            "jagged": [list(range(i % 4)) for i in range(rows)],
            "padded": [[i] * (i % 3) for i in range(rows)],
            "struct": [{"x": i, "y": f"y{i}"} for i in range(rows)],
            "holes": holes,
            "f0": numbers / 2,
            "f1": numbers / 8,
            "known": [f"k{i % 2}" for i in range(rows)],
        }
    )


KINDS = {"nulls": {"holes": "mask"}, "stack": {"features": ["f0", "f1"]}, "pad": {"padded": -1},
         "categories": {"known": ["k1", "k0"]}}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_tensor_crosses_processes(method):
    session = tq.Session()
    session.register_table("t", every_kind())
    options = {"batch_size": 10, **KINDS}
    here = [
        support.describe(batch)
        for batch in tq.create_dataloader(table="t", session=session, **options)[0]
    ]
    loader, _ = tq.create_dataloader(
        table="t", session=session, num_workers=1, multiprocessing_context=method, **options
    )
    sent = [support.describe(batch) for batch in loader]
    assert len(here) == 3
    assert sent == here
    assert here[0]["jagged"][0] == "nested"
    assert here[0]["code"][0] == "Encoded"
    assert "holes_mask" in here[0]


@pytest.mark.slow
def test_every_kind_is_seen_the_same_inside_a_worker():
    session = tq.Session()
    session.register_table("t", every_kind())
    options = {"batch_size": 10, "transform": support.describe, **KINDS}
    here = list(tq.create_dataloader(table="t", session=session, **options)[0])
    there = list(tq.create_dataloader(table="t", session=session, num_workers=1, **options)[0])
    assert there == here


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["numpy", "arrow", "dict"])
def test_the_other_formats_cross_processes(output_format):
    session = tq.Session()
    session.register_table("t", every_kind())
    options = {"batch_size": 10, "output_format": output_format}
    if output_format == "numpy":
        options |= KINDS
    batches = [
        list(tq.create_dataloader(table="t", session=session, num_workers=n, **options)[0])
        for n in (0, 1)
    ]
    assert [repr(batch) for batch in batches[0]] == [repr(batch) for batch in batches[1]]


@pytest.mark.slow
def test_retained_batches_do_not_share_memory():
    """All batches of an epoch kept, then written into: no other changes."""
    session = tq.Session()
    session.register_table("t", pa.table({"id": np.arange(200), "x": np.zeros(200)}))
    batches = list(
        tq.create_dataloader(table="t", session=session, num_workers=2, batch_size=10)[0]
    )
    for batch in batches:
        batch["x"] += 1
    assert all((batch["x"] == 1).all() for batch in batches)
    assert sorted(support.flat(support.ids_of(batches))) == list(range(200))


# ------------------------------------------------------------------------------------------------
# Workers read the pinned files.


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_appears_later_is_not_seen(folder, query, method):
    before = expected(query)
    loader, dataset = tq.create_dataloader(query, num_workers=1, multiprocessing_context=method)
    support.write_parquet(f"{folder}/later", pa.table({"id": [10**6], "k": [0], "x": [0.0]}))
    assert delivered(loader) == before
    assert delivered(dataset) == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", ["rewritten", "longer", "gone"])
def test_a_changed_file_is_an_error_that_names_it(folder, query, workers, damage):
    loader, _ = tq.create_dataloader(query, num_workers=workers, split_rows=50)
    victim = f"{folder}/001.parquet"
    if damage == "rewritten":
        stamp = os.stat(victim)
        data = Path(victim).read_bytes()
        time.sleep(0.01)
        Path(victim).write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        assert os.stat(victim).st_size == stamp.st_size
    elif damage == "longer":
        with open(victim, "ab") as file:
            file.write(b"more")
    else:
        os.remove(victim)
    with pytest.raises(
        tq.DataError, match=r"001\.parquet.*(changed|vanished).*register the table again"
    ):
        list(loader)


def test_every_reading_call_names_the_changed_file(folder, query):
    """Not only loaders: no other library's exception passes through."""
    os.remove(f"{folder}/001.parquet")
    session = query.session
    calls = [
        query.to_arrow,
        query.count,
        lambda: query.head(900),
        lambda: session.register_table("once", query),
    ]
    for call in calls:
        with pytest.raises(tq.DataError, match=r"^file .*001\.parquet vanished"):
            call()


def test_a_file_that_changes_in_the_middle_of_an_epoch_is_an_error(folder, query):
    loader, _ = tq.create_dataloader(query, batch_size=10, split_rows=50)
    iterator = iter(loader)
    next(iterator)
    with open(f"{folder}/002.parquet", "ab") as file:
        file.write(b"more")

    # Batches decoded ahead may still be delivered, but no further epoch.
    def two_more_epochs():
        list(iterator)
        return list(loader), list(loader)

    with pytest.raises(tq.DataError, match=r"002\.parquet.*changed"):
        two_more_epochs()


@pytest.mark.slow
def test_an_error_of_a_worker_keeps_its_class_and_message(query):
    session = tq.Session()
    session.register_table("t", pa.table({"id": [1, None]}))
    for workers in (0, 1):
        loader, _ = tq.create_dataloader(table="t", session=session, num_workers=workers)
        with pytest.raises(tq.DataError, match="id"):
            list(loader)


def test_sessions_and_queries_are_not_sent_but_datasets_are(query):
    for thing in (query, query.session):
        with pytest.raises(TypeError, match="dataset"):
            pickle.dumps(thing)
    dataset = tq.QueryDataset(query, batch_size=32, shuffle=True, rank=1, world_size=2)
    dataset.set_epoch(2)
    order = support.ids_of(dataset)
    dataset.set_epoch(2)
    copy = pickle.loads(pickle.dumps(dataset))
    assert support.ids_of(copy) == order


def test_a_worker_knows_only_its_share(query):
    dataset = tq.QueryDataset(query, rank=0, world_size=1)
    with pytest.raises(tq.ConfigError, match="worker"):
        pickle.loads(pickle.dumps(dataset)).shard_plan()


def test_pinned_memory_is_passed_on(query):
    """Without a device torch warns and delivers as usual."""
    loader, dataset = tq.create_dataloader(query, pin_memory=torch.cuda.is_available())
    assert delivered(loader) == expected(query)
    assert dataset.epoch == 1
