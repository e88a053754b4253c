"""Promise: batches of worker processes equal those of one process, bit by bit and in the same turns, however many
are sent together; a failure in the middle loses none of them."""

import collections
import datetime
import decimal
import pickle
import select
import time
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pyarrow as pa
import pytest
import torch

import support
import tensorquery as tq
from effort import METHODS
from tensorquery.errors import DataError
from tensorquery.loading.tensors import tensor_options
from tensorquery.loading.workers.batch_messages import (
    BatchMessage,
    BatchPacker,
    as_they_come,
    in_turns,
)
from tensorquery.loading.workers.batch_runs import (
    BatchRun,
    BatchRuns,
    TaggedBatch,
    batches_per_message,
)
from tensorquery.loading.workers.shared_memory import SegmentPool

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
    path = tmp_path_factory.mktemp("messages") / "t"
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


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("method", METHODS)
def test_batches_of_every_kind_cross_unchanged(folder, output_format, method):
    options = {**OPTIONS, "output_format": output_format, "multiprocessing_context": method}
    together = loader_of(folder, **options)
    assert together.dataset._iterations.sent.raw
    assert together.dataset._iterations.sent.batches > 8
    alone = loader_of(folder, **options, transform=itself)
    assert not alone.dataset._iterations.sent.raw
    batches = list(together)
    assert len(batches) == ROWS / 16
    assert all(map(same, batches, alone))


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["arrow", "dict"])
def test_arrow_batches_cross_unchanged(folder, output_format):
    options = {"output_format": output_format, "columns": ["id", "name", "some"]}
    together, alone = loader_of(folder, **options), loader_of(folder, **options, transform=itself)
    assert all(left == right for left, right in zip(together, alone, strict=True))


@pytest.mark.slow
def test_arrow_batches_of_every_kind_cross_unchanged(tmp_path):
    numbers = pa.array(range(400), pa.int64())
    pairs = pa.list_(pa.field("item", pa.int64(), nullable=False), 2)
    columns = {
        "id": pa.array(range(200)),
        "pair": pa.FixedSizeListArray.from_arrays(numbers, type=pairs),
        "code": pa.array([f"c{i % 5}" for i in range(200)]).dictionary_encode(),
        "record": pa.array([{"x": [i], "y": None} for i in range(200)]),
        "map": pa.array([[("k", i)] for i in range(200)], pa.map_(pa.string(), pa.int64())),
        "view": pa.array(["long enough to lie elsewhere", None] * 100, pa.string_view()),
    }
    table = pa.table(columns)
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    crossed, plain = (
        list(loader_of(tmp_path, output_format="arrow", num_workers=workers)) for workers in (1, 0)
    )
    assert len(crossed) == 13
    for batch, other in zip(crossed, plain, strict=True):
        assert batch.schema.equals(other.schema, check_metadata=True)
        batch.validate(full=True)
        assert batch == other


@pytest.mark.slow
def test_an_arrow_batch_crosses_without_what_was_decoded_with_it(tmp_path):
    rows, size = 20_000, 50
    table = pa.table(
        {"id": range(rows), "text": ["some words " * 5] * rows, "few": [[1.5] * 8] * rows}
    )
    folder = support.write_parquet(tmp_path / "t", table, files=1, row_group=rows)
    for batch in loader_of(folder, output_format="arrow", num_workers=1, batch_size=size):
        # Of an array that is a part of another one, these are the buffers of all of it.
        found = sum(buffer.size for column in batch for buffer in column.buffers() if buffer)
        assert found <= 2 * size * (8 + 55 + 4 + 64 + 4)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_large_columns_which_are_not_gathered_first_cross_unchanged(
    tmp_path, output_format, shuffle
):
    numbers = np.arange(60_000)
    columns = {
        name: (numbers * 3 + at).astype(kind)
        for at, (name, kind) in enumerate([("a", "i8"), ("b", "f4"), ("c", "f8"), ("d", "i4")])
    }
    table = pa.table({"id": numbers, **columns, "gap": pa.array(numbers, mask=numbers % 5 == 0)})
    folder = support.write_parquet(tmp_path / "t", table, files=2, row_group=10_000)
    options = {
        "batch_size": 2_500,
        "nulls": {"gap": -1},
        "output_format": output_format,
        "shuffle": shuffle,
    }
    batches = list(loader_of(folder, **options))
    ids = np.concatenate([np.asarray(batch["id"]) for batch in batches])
    assert np.array_equal(np.sort(ids), numbers)
    for batch in batches:
        here = np.asarray(batch["id"])
        for name, wanted in columns.items():
            assert np.array_equal(np.asarray(batch[name]), wanted[here]), name
        assert np.array_equal(np.asarray(batch["gap"]), np.where(here % 5 == 0, -1, here))


@pytest.mark.slow
def test_what_the_core_delivers_in_parts_is_put_together_where_there_is_room(folder):
    dataset = loader_of(folder, columns=["id", "s1"], num_workers=0).dataset
    shards = dataset._plan.epochs.shards(0, 0, None)
    stream = dataset._state.here()[0].stream(shards, 0, 0, [], 1, tensor_options(), loose=True)
    rows, block, [ids, numbers], *_ = stream.next()
    memory = bytearray(b"\xa5" * (len(block) + 100))
    block.write_to(memory, 50)
    for (offset, count), dtype in [(ids, np.int64), (numbers, np.float32)]:
        assert np.frombuffer(memory, dtype, count, 50 + offset).tolist() == list(range(rows))
    assert memory[:50] == memory[-50:] == b"\xa5" * 50
    for target, at in [(memory, 101), (memory, 2**64 - 1), (bytes(memory), 0), (memory[:10], 0)]:
        with pytest.raises(ValueError, match="need writable, contiguous memory"):
            block.write_to(target, at)


@pytest.mark.slow
def test_many_batches_cross_in_one_file(folder, shared_files):
    batches = list(loader_of(folder, columns=["id", "s1", "s2", "day"]))
    # Each worker sends runs of 1, 2, 4 and so on.
    assert len(batches) == 125
    assert 2 <= len(shared_files) <= 14


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3, 4])
def test_workers_that_live_on_after_a_resume_send_their_own_memory(folder, steps):
    """After a resume the second worker may be first in turn; its process then reads rows that another one reads later."""
    options = {"columns": ["id", "s1"], "persistent_workers": True, "batch_size": 7}

    def ids(loader):
        return [(batch["id"].tolist(), batch["s1"].tolist()) for batch in loader]

    loader = loader_of(folder, **options)
    whole = ids(loader)
    other = loader_of(folder, **options)
    iterator = iter(other)
    for _ in range(steps):
        next(iterator)
    loader.load_state_dict(other.state_dict())
    assert ids(loader) == whole[steps:]
    for _ in range(2):
        assert ids(loader) == whole


@pytest.mark.slow
def test_what_comes_before_an_error_arrives(tmp_path):
    values = [None if i == 700 else i for i in range(1_000)]
    table = pa.table({"x": pa.array(values, pa.int64())})
    folder = support.write_parquet(tmp_path / "t", table, files=1, row_group=1_000)
    received = []
    with pytest.raises(DataError, match="1 null"):
        for batch in loader_of(folder, num_workers=1, batch_size=10):
            received.extend(batch["x"].tolist())
    assert received == list(range(700))


@pytest.mark.slow
@pytest.mark.parametrize("step", [40, 41])
def test_no_batch_of_another_worker_comes_in_place_of_an_error(tmp_path, step):
    """States count the delivered batches, so the batches must be those that come without the error."""

    def written(where):
        values = [None if i == where else i for i in range(4_000)]
        table = pa.table({"id": np.arange(4_000), "x": pa.array(values, pa.int64())})
        return support.write_parquet(tmp_path / str(where), table, files=1, row_group=500)

    clean = [batch["id"].tolist() for batch in loader_of(written(None), batch_size=10)]
    received = []
    with pytest.raises(DataError, match="1 null"):
        for batch in loader_of(written(clean[step][0]), batch_size=10):
            received.append(batch["id"].tolist())
    assert received == clean[: len(received)]
    # Those of the other worker that crossed before.
    assert step - 1 <= len(received) <= step


@pytest.mark.slow
def test_slow_code_of_the_user_holds_no_batch_back(folder):
    for options in ({"transform": itself}, {"collate_fn": itself}, {"timeout": 30.0}):
        assert loader_of(folder, columns=["id"], **options).dataset._iterations.sent.batches == 1
    assert loader_of(folder, columns=["id"]).dataset._iterations.sent.batches > 1


@pytest.mark.slow
def test_out_of_order_each_batch_comes_once(folder):
    if not hasattr(torch.utils.data.DataLoader(()), "in_order"):
        pytest.skip("this torch has no in_order")
    batches = loader_of(folder, columns=["id"], in_order=False)
    assert sorted(support.flat(support.ids_of(batches))) == list(range(ROWS))


# ------------------------------------------------------------------------------------------------
# The parts by themselves.


def tagged(worker, number):
    return TaggedBatch(batch=(worker, number), worker=worker, last=False, cursor="")


def of_worker(worker, length):
    """The messages of a worker with so many batches: the last one is marked, and without any it reports its end."""
    for number in range(length):
        yield tagged(worker, number)._replace(last=number == length - 1)
    if not length:
        yield TaggedBatch(None, worker, True, "[]", is_report=True)


def crossing(lengths, first, most=4):
    """BatchRuns of workers with so many batches each, in the order in which torch hands them out."""
    workers = [(first + step) % len(lengths) for step in range(len(lengths))]
    runs = {worker: BatchRuns(of_worker(worker, lengths[worker]), most) for worker in workers}
    pack = BatchPacker(None)
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
    found = in_turns(crossing(lengths, first), first, 3)
    assert [each.batch for each in found if not each.is_report] == wanted
    found = as_they_come(crossing(lengths, first), 3)
    assert sorted(each.batch for each in found if not each.is_report) == sorted(wanted)


@pytest.mark.parametrize(
    "order", [lambda messages: in_turns(messages, 0, 3), lambda messages: as_they_come(messages, 3)]
)
@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_worker_that_does_not_say_that_it_has_ended_is_missed(order, silent):
    messages = [each for each in crossing([5, 5, 5], 0) if each.worker != silent]
    with pytest.raises(DataError, match=f"worker {silent} ended before its last batch"):
        list(order(iter(messages)))


def test_runs_grow_to_their_bound():
    runs = BatchRuns(iter([tagged(0, number) for number in range(20)]), 6)
    assert [(len(run.batches), run.is_torn) for run in runs] == [
        (length, False) for length in (1, 2, 4, 6, 6, 1)
    ]


def test_an_error_in_a_run_comes_after_the_run():
    def batches():
        yield from (tagged(0, number) for number in range(2))
        raise DataError("bad")

    runs = BatchRuns(batches(), 6)
    first, second = next(runs), next(runs)
    assert (len(first.batches), first.is_torn) == (1, False)
    assert (len(second.batches), second.is_torn) == (1, True)
    with pytest.raises(DataError, match="bad"):
        next(runs)


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5, 6])
def test_turns_stop_at_a_worker_that_fails(failing, after):
    def until_error():
        yield from (tagged(failing, number) for number in range(after))
        raise DataError("bad")

    sources = [iter([tagged(worker, number) for number in range(12)]) for worker in range(3)]
    sources[failing] = until_error()
    runs, pack = [BatchRuns(source, 4) for source in sources], BatchPacker(None)

    def crossing_messages():
        while True:
            for run in runs:
                yield pack(next(run))

    found = []
    with pytest.raises(DataError, match="bad"):
        for each in in_turns(crossing_messages(), 0, 3):
            found.append(each.batch)
    in_order = [(worker, number) for number in range(12) for worker in range(3)]
    assert found == in_order[: len(found)]
    assert (failing, after) not in found


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
    [found] = BatchPacker(None)(BatchRun([tagged(0, 0)._replace(batch=batch)])).opened()
    sparse, dense = found.batch.pop("sparse"), batch.pop("sparse")
    assert torch.equal(sparse.to_dense(), dense.to_dense())
    assert same(found.batch, batch)
    assert found.batch["learnt"].requires_grad
    assert found.batch["columns"].stride() == batch["columns"].stride()


@pytest.mark.slow
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


@pytest.mark.parametrize("text", ["", "x" * 1000])
def test_a_message_is_written_as_a_whole(text):
    """A killed worker leaves no partial message, for whose rest the loader would wait."""
    pool, pack = SegmentPool(1), BatchPacker(None)
    pack.header = pool.header()
    run = BatchRun([tagged(0, number)._replace(batch={"s": [text] * 16}) for number in range(256)])
    for _ in range(3):
        message = pack(run)
        message = ForkingPickler.dumps((17, message))
        # Behind a length of four bytes; pipe(7): so much is written at once or not at all.
        assert len(message) + 4 <= select.PIPE_BUF
        assert [letter.batch for letter in pickle.loads(message)[1].opened()] == [{"s": [text] * 16}] * 256  # fmt: skip


@pytest.mark.parametrize("length", [10, 1 << 21])
def test_what_has_no_numbers_takes_little_shared_memory(length):
    """Images as bytes, for example: containers have 64 MiB of it."""
    run = BatchRun([tagged(0, 0)._replace(batch={"s": ["x" * length]})])
    message = BatchPacker(None)(run)
    assert message.memory.nbytes <= 1 << 20
    [letter] = pickle.loads(ForkingPickler.dumps(message)).opened()
    assert letter.batch == {"s": ["x" * length]}


def test_the_size_of_a_message():
    assert batches_per_message(0, 2) == 256
    assert batches_per_message(1 << 30, 2) == 1
    assert 2 <= batches_per_message(48 << 10, 2) <= 64
    # All of them fit the shared memory of a container.
    for workers in (1, 8, 20, 64):
        assert batches_per_message(1 << 10, workers) * (5 << 10) * workers <= 40 << 20
    assert batches_per_message(1 << 10, 64) >= 100


@pytest.mark.slow
def test_a_message_that_cannot_be_sent_ends_its_worker(folder, monkeypatch):
    """As in a worker without memory: Python's queue drops the message, and the loader would wait forever."""

    def no_memory(message):
        raise MemoryError("no memory for a message")

    monkeypatch.setattr(BatchMessage, "__reduce__", no_memory)
    # The time limit ends a loader that waits.
    loader = loader_of(folder, timeout=120, multiprocessing_context="fork", **OPTIONS)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)
