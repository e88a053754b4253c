"""Promise: workers fill the same shared memory again and again, and no batch that anybody still holds ever changes."""

import gc
import os
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
import torch

import support
import tensorquery as tq
from effort import METHODS
from tensorquery import _core
from tensorquery._util.shared_memory import shared
from tensorquery._util.tensor_views import tensor_over
from tensorquery.loading.workers.shared_memory import (
    LARGEST,
    SEGMENTS,
    SMALLEST,
    SegmentPool,
    Segments,
)

ROWS = 40_000
FREE, LENT, ABANDONED = range(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    numbers = np.arange(ROWS)
    table = pa.table({"id": numbers, "x": numbers / 8, "wide": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 16)), 16)})  # fmt: skip
    return support.write_parquet(
        tmp_path_factory.mktemp("segments") / "t", table, files=4, row_group=2_000
    )


def loader_of(folder, **options):
    chosen = {"batch_size": 100, "num_workers": 2, "rank": 0, "world_size": 1, **options}
    return tq.create_dataloader(path=str(folder), **chosen)[0]


def check(batch, ids=None):
    """Whether the columns of a batch belong together, and are those of the rows that it had."""
    found = torch.as_tensor(batch["id"])
    assert torch.equal(torch.as_tensor(batch["x"]), found.double() / 8)
    assert torch.equal(torch.as_tensor(batch["wide"]), found[:, None].expand(-1, 16))
    assert ids is None or found.tolist() == ids


# ------------------------------------------------------------------------------------------------
# Through a loader.


@pytest.mark.slow
def test_epochs_go_through_few_files(folder, shared_files):
    loader = loader_of(folder, persistent_workers=True)
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert len(shared_files) <= 2 * SEGMENTS
    messages = ROWS * 144 / SMALLEST * 3
    assert messages > 16


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_held_does_not_change(folder, output_format, method):
    loader = loader_of(folder, output_format=output_format, multiprocessing_context=method)
    held, draw = [], random.Random(3)
    for batch in loader:
        if draw.random() < 0.05:
            held.append((batch, batch["id"].tolist()))
        if len(held) > 6:
            check(*held.pop(draw.randrange(len(held))))
    assert len(held) > 4
    for batch, ids in held:
        check(batch, ids)


@pytest.mark.slow
def test_whoever_keeps_everything_gets_memory_of_its_own(folder):
    kept = [(batch, batch["id"].tolist()) for batch in loader_of(folder)]
    assert len(kept) == ROWS / 100
    for batch, ids in kept:
        check(batch, ids)
    assert sorted(support.flat(ids for _, ids in kept)) == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch["wide"][3:5, 1],
        lambda batch: batch["wide"].numpy()[3:5, 1],
        lambda batch: batch["wide"].flatten().view(-1, 16)[3:5, 1],
        lambda batch: torch.from_dlpack(batch["wide"])[3:5, 1],
        lambda batch: batch["wide"].untyped_storage(),
    ],
    ids=["view", "numpy", "views", "dlpack", "storage"],
)
def test_a_part_keeps_its_memory(folder, part):
    def content(found):
        if isinstance(found, torch.UntypedStorage):
            return torch.empty(0, dtype=torch.uint8).set_(found).numpy().tobytes()
        return found.tolist()

    kept = [(found := part(batch), content(found)) for batch in loader_of(folder, num_workers=1)]
    gc.collect()
    assert all(content(found) == wanted for found, wanted in kept)


@pytest.mark.slow
def test_large_batches_and_many_sizes(folder):
    """One batch of the whole table, and messages of other sizes in the same segments."""
    [whole] = loader_of(folder, batch_size=ROWS, num_workers=1)
    check(whole)
    for size in (1, 7, 1_000, 20_000):
        for batch in loader_of(folder, batch_size=size, num_workers=1):
            check(batch)
    # Batches of 20,000 rows are larger than a segment at first.
    assert SMALLEST < 20_000 * 144


@pytest.mark.slow
def test_a_transform_gets_segments_too(folder, shared_files):
    loader = loader_of(folder, transform=dict, persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            check(batch)
    assert len(shared_files) <= 2 * SEGMENTS


@pytest.mark.slow
def test_an_iteration_that_is_broken_off_gives_everything_back(folder, shared_files):
    loader = loader_of(folder, persistent_workers=True)
    for _ in range(12):
        check(next(iter(loader)))
    for batch in loader:
        check(batch)
    assert len(shared_files) <= 2 * SEGMENTS


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_sees_what_it_inherited(folder):
    """Its parent goes on and lets go of the batch; workers fill other memory."""
    batches = iter(loader_of(folder, num_workers=1))
    held = next(batches)
    ids = held["id"].tolist()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(go)
            os.read(wait, 1)
            check(held, ids)
            status = 0
        finally:
            os._exit(status)
    os.close(wait)
    del held
    for batch in batches:
        check(batch)
    os.close(go)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_lets_go_gives_nothing_back(folder):
    batches = iter(loader_of(folder, num_workers=1))
    held = next(batches)
    ids = held["id"].tolist()
    child = os.fork()
    if child == 0:
        try:
            del held
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for batch in batches:
        check(batch)
    check(held, ids)


# ------------------------------------------------------------------------------------------------
# The two sides by themselves.


def lent(segments, size):
    found = segments.lend(size)
    assert found is not None
    number, memory, is_new = found
    return number, memory.data_ptr(), is_new


def test_segments_are_lent_again_when_they_are_free():
    states = shared(SEGMENTS).zero_()
    segments = Segments(states)
    first = [lent(segments, 10) for _ in range(SEGMENTS)]
    assert [number for number, *_ in first] == list(range(SEGMENTS))
    assert all(is_new for *_, is_new in first)
    assert segments.lend(10) is None
    states[3] = FREE
    assert lent(segments, SMALLEST) == (3, first[3][1], False)
    # Too small for what comes next: another segment of that number.
    states[5] = FREE
    number, address, is_new = lent(segments, SMALLEST + 1)
    assert (number, is_new) == (5, True)
    assert address != first[5][1]
    # A child of the loader may still see the old one.
    states[6] = ABANDONED
    assert lent(segments, 10)[::2] == (6, True)
    assert segments.lend(LARGEST + 1) is None


def received(pool, worker=0, segment=2, memory=None, size=100):
    number = pickle.loads(pickle.dumps(pool.header().pool))
    return SegmentPool.received(number, worker, segment, memory, size)


def test_a_lease_ends_with_the_last_that_sees_the_memory():
    pool = SegmentPool(2)
    states = pool.header().states
    states[1, 2] = LENT
    memory = shared(SMALLEST)
    lease = received(pool, 1, 2, memory, 800)
    assert len(lease) == 800
    tensor = tensor_over(lease, torch.int64, 80, 5)
    array = np.frombuffer(lease, np.int64, 5, 80)[1:3]
    tensor[1] = 7
    assert memory.view(torch.int64)[11] == 7
    assert array[0] == 7
    del lease
    del tensor
    assert states[1, 2] == LENT
    del array
    assert states[1, 2] == FREE
    assert states.sum() == 0
    # Known from now on.
    states[1, 2] = LENT
    assert len(received(pool, 1, 2, None, 80)) == 80
    assert states[1, 2] == FREE


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_abandons_what_is_lent():
    pool = SegmentPool(1)
    states = pool.header().states
    states[0, 2] = LENT
    lease = received(pool, memory=shared(SMALLEST))
    child = os.fork()
    if child == 0:
        del lease
        os._exit(int(states[0, 2]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == LENT
    del lease
    assert states[0, 2] == ABANDONED


def test_what_comes_for_nobody_is_dropped():
    pool = SegmentPool(1)
    number = pool.header().pool
    pool.close()
    assert SegmentPool.received(number, 0, 0, shared(SMALLEST), 10) is None


@pytest.mark.parametrize(
    ("size", "states", "slot"),
    [(65, bytearray(2), 0), (64, bytearray(2), 2), (64, bytes(2), 0)],
    ids=["longer than its memory", "no such state", "states that cannot be written"],
)
def test_a_lease_that_cannot_be(size, states, slot):
    with pytest.raises(ValueError, match="needs writable, contiguous memory"):
        _core.Lease(bytearray(64), size, states, slot)


def test_columns_over_pinned_memory():
    """torch knows by its storage which pinned memory a copy still reads; each column counts its own changes."""
    block = shared(640)[64:]
    left, right = tensor_over(block, torch.int64, 0, 4), tensor_over(block, torch.float32, 64, 3)
    assert left.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()
    assert right.data_ptr() == block.data_ptr() + 64
    versions = right._version, block._version
    left.fill_(1)
    assert block[:9].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert (right._version, block._version) == versions
    assert tensor_over(None, torch.int64, 0, 0).shape == (0,)
