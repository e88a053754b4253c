"""Promise: batches of worker processes are those of one process, bit by bit and in the same turns, however many of them
cross together; what fails in the middle takes nothing with it."""

import collections
import datetime
import decimal
import time

import numpy as np
import pyarrow as pa
import pytest
import torch

import support
import tensorquery as tq
from tensorquery.errors import DataError
from tensorquery.iterator import Tagged
from tensorquery.parcels import Packer, Parcels, batches_per_parcel, in_turns

ROWS = 2_000
Pair = collections.namedtuple("Pair", ["left", "right"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    numbers = np.arange(ROWS)
    day = datetime.date(2026, 1, 1)
    table = pa.table(
        {
            "id": numbers,
            "half": (numbers / 7).astype(np.float16),
            "flag": numbers % 3 == 0,
            "price": pa.array([decimal.Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(12, 2)),
            "day": pa.array([day + datetime.timedelta(i) for i in range(ROWS)]),
            "name": [f"row {i}" for i in range(ROWS)],
            "raw": [bytes([i % 251] * (i % 4)) for i in range(ROWS)],
            "code": pa.array([f"c{i % 9}" for i in range(ROWS)]).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3.0 * ROWS)), 3),
            "some": [list(range(i % 5)) for i in range(ROWS)],
            "few": [list(range(i % 3)) for i in range(ROWS)],
            "gap": [None if i % 4 == 0 else i for i in range(ROWS)],
            "inner": [{"a": i, "b": i / 2} for i in range(ROWS)],
            "s1": numbers.astype(np.float32),
            "s2": numbers.astype(np.float32) * 2,
        }
    )  # fmt: skip
    path = tmp_path_factory.mktemp("parcels") / "t"
    return support.write_parquet(path, table, files=3, row_group=130)


OPTIONS = {"nulls": {"gap": "mask"}, "pad": {"few": -1}, "stack": {"both": ["s1", "s2"]}}


def loader_of(folder, **options):
    chosen = {"batch_size": 16, "num_workers": 2, "rank": 0, "world_size": 1, **options}
    return tq.create_dataloader(path=str(folder), **chosen)[0]


def itself(batch):
    return batch


def same(left, right):
    """Whether two batches are alike in every value, type and shape."""
    assert type(left) is type(right)
    match left:
        case dict():
            return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        case list() | tuple():
            return len(left) == len(right) and all(map(same, left, right))
        case torch.Tensor() if left.is_nested:
            return same(left.values(), right.values()) and same(left.offsets(), right.offsets())
        case torch.Tensor():
            return left.dtype == right.dtype and torch.equal(left, right)
        case np.ndarray():
            return left.dtype == right.dtype and np.array_equal(left, right)
        case _:
            return left == right


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_of_every_kind_cross_unchanged(folder, output_format, method):
    options = {**OPTIONS, "output_format": output_format, "multiprocessing_context": method}
    together = loader_of(folder, **options)
    assert together.dataset._sent.raw
    assert together.dataset._sent.batches > 8
    alone = loader_of(folder, **options, transform=itself)
    assert not alone.dataset._sent.raw
    batches = list(together)
    assert len(batches) == ROWS / 16
    assert all(map(same, batches, alone))


@pytest.mark.parametrize("output_format", ["arrow", "dict"])
def test_arrow_batches_cross_unchanged(folder, output_format):
    options = {"output_format": output_format, "columns": ["id", "name", "some"]}
    together, alone = loader_of(folder, **options), loader_of(folder, **options, transform=itself)
    assert all(left == right for left, right in zip(together, alone, strict=True))


def test_tensors_of_a_batch_can_be_changed_in_place(folder):
    columns = ["id", "s1", "s2"]
    wanted = [(batch["s1"] + 1, batch["s2"]) for batch in loader_of(folder, columns=columns)]
    kept = []
    for batch in loader_of(folder, columns=columns):
        weight = torch.ones((), requires_grad=True)
        loss = (batch["s2"] * weight).sum()
        batch["s1"] += 1  # of the same block: no backward pass may mind
        loss.backward()
        kept.append((batch["s1"], batch["s2"]))
    for (left, other), (right, same_other) in zip(kept, wanted, strict=True):
        assert torch.equal(left, right)
        assert torch.equal(other, same_other)


def test_many_batches_cross_in_one_file(folder, shared_files):
    batches = list(loader_of(folder, columns=["id", "s1", "s2", "day"]))
    # Each worker sends runs of 1, 2, 4 and so on.
    assert len(batches) == 125
    assert 2 <= len(shared_files) <= 14


@pytest.mark.parametrize("steps", [1, 2, 3, 29, 124])
def test_a_state_counts_what_was_received_not_what_crossed(folder, steps):
    columns = ["id"]
    whole = [batch["id"].tolist() for batch in loader_of(folder, columns=columns, shuffle=True)]
    first = loader_of(folder, columns=columns, shuffle=True)
    iterator = iter(first)
    begun = [next(iterator)["id"].tolist() for _ in range(steps)]
    state = first.state_dict()
    del iterator
    rest = loader_of(folder, columns=columns, shuffle=True)
    rest.load_state_dict(state)
    assert begun + [batch["id"].tolist() for batch in rest] == whole


def test_what_comes_before_an_error_arrives(tmp_path):
    values = [None if i == 700 else i for i in range(1_000)]
    table = pa.table({"x": pa.array(values, pa.int64())})
    folder = support.write_parquet(tmp_path / "t", table, files=1, row_group=1_000)
    received = []
    with pytest.raises(DataError, match="1 null"):
        for batch in loader_of(folder, num_workers=1, batch_size=10):
            received.extend(batch["x"].tolist())
    assert received == list(range(700))


def test_slow_code_of_the_user_holds_no_batch_back(folder):
    for options in ({"transform": itself}, {"collate_fn": itself}, {"timeout": 30.0}):
        assert loader_of(folder, columns=["id"], **options).dataset._sent.batches == 1
    assert loader_of(folder, columns=["id"]).dataset._sent.batches > 1


def test_out_of_order_each_batch_comes_once(folder):
    if not hasattr(torch.utils.data.DataLoader(()), "in_order"):
        pytest.skip("this torch has no in_order")
    batches = loader_of(folder, columns=["id"], in_order=False)
    assert sorted(support.flat(support.ids_of(batches))) == list(range(ROWS))


# ------------------------------------------------------------------------------------------------
# The parts by themselves.


def tagged(worker, number):
    return Tagged(batch=(worker, number), worker=worker, last=False, cursor="")


def crossing(lengths, first, most=4):
    """Parcels of workers with so many batches each, in the order in which torch hands them out."""
    workers = [(first + step) % len(lengths) for step in range(len(lengths))]
    runs = {
        worker: Parcels(iter([tagged(worker, number) for number in range(lengths[worker])]), most)
        for worker in workers
    }
    pack = Packer(None)
    while workers:
        for worker in list(workers):
            run = next(runs[worker], None)
            if run is None:
                workers.remove(worker)
            else:
                yield pack(run)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize(
    "lengths", [[5, 5, 5], [6, 5, 5], [0, 0, 0], [9, 0, 3], [1, 30, 2], [0, 1, 7], [17, 16, 1]]
)
def test_workers_take_turns_batch_by_batch(lengths, first):
    wanted = []
    for number in range(max(lengths)):
        for step in range(3):
            worker = (first + step) % 3
            if number < lengths[worker]:
                wanted.append((worker, number))
    found = [each.batch for each in in_turns(crossing(lengths, first), first, 3)]
    assert found == wanted


def test_runs_grow_to_their_bound():
    runs = Parcels(iter([tagged(0, number) for number in range(20)]), 6)
    assert [len(run) for run in runs] == [1, 2, 4, 6, 6, 1]


def test_an_error_in_a_run_comes_after_the_run():
    def batches():
        yield from (tagged(0, number) for number in range(2))
        raise DataError("bad")

    runs = Parcels(batches(), 6)
    assert [len(next(runs)), len(next(runs))] == [1, 1]
    with pytest.raises(DataError, match="bad"):
        next(runs)


def test_what_a_transform_may_return_crosses():
    shared = torch.zeros(2)
    batch = {
        "plain": torch.arange(6).reshape(2, 3),
        "columns": torch.arange(6).reshape(2, 3).T,
        "scalar": torch.tensor(3),
        "none": torch.empty(0, 4),
        "brain": torch.ones(3, dtype=torch.bfloat16),
        "learnt": torch.ones(2, requires_grad=True),
        "pair": Pair(shared, [shared, "text", None, 1.5]),
        "array": np.arange(3),
        "sparse": torch.eye(2).to_sparse(),
    }
    [found] = Packer(None)([tagged(0, 0)._replace(batch=batch)]).opened()
    sparse, dense = found.batch.pop("sparse"), batch.pop("sparse")
    assert torch.equal(sparse.to_dense(), dense.to_dense())
    assert same(found.batch, batch)
    assert found.batch["learnt"].requires_grad
    assert found.batch["columns"].stride() == batch["columns"].stride()


def test_what_was_sent_outlives_its_worker(folder):
    def several(batch):
        return {"kept": batch["id"].to_sparse(), "count": torch.tensor(len(batch["id"]))}

    options = {"columns": ["id"], "transform": several, "batch_size": 900}
    iterator = iter(loader_of(folder, **options, prefetch_factor=4))
    batches = [next(iterator)]
    time.sleep(0.5)  # time for the workers to end, which have sent everything
    batches.extend(iterator)
    assert sorted(batch["kept"].to_dense().sum().item() for batch in batches) == sorted(
        batch["id"].sum().item() for batch in loader_of(folder, columns=["id"], batch_size=900)
    )
    assert sum(batch["count"].item() for batch in batches) == ROWS


def test_the_size_of_a_parcel():
    assert batches_per_parcel(0, 2) == 256
    assert batches_per_parcel(1 << 30, 2) == 1
    assert 2 <= batches_per_parcel(48 << 10, 2) <= 64
    # All of them fit the shared memory of a container.
    for workers in (1, 8, 20, 64):
        assert batches_per_parcel(1 << 10, workers) * (5 << 10) * workers <= 40 << 20
    assert batches_per_parcel(1 << 10, 64) >= 100
