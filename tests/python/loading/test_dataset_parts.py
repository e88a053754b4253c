"""The parts of a dataset, each by itself: a plan, an epoch state and a tracer."""

import json
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from tensorquery.distributed.topology import Topology
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.plan import DatasetPlan
from tensorquery.loading.tracer import Tracer
from tensorquery.loading.workers.epoch_slots import EpochSlots

ROWS, BATCH = 100, 8


@pytest.fixture
def folder(tmp_path):
    for file in range(2):
        ids = pa.table({"id": range(file * 50, file * 50 + 50)})
        pq.write_table(ids, tmp_path / f"{file}.parquet", row_group_size=10)
    return tmp_path


def plan_of(folder, rank=0, world_size=1, **options):
    chosen = LoaderOptions(batch_size=BATCH, split_rows=10, **options)
    query = tq.Session().sql(f"SELECT id FROM '{folder}'")
    topology = Topology(rank, world_size)
    return DatasetPlan(query, chosen.deal, chosen, topology, chosen.output, None)


@pytest.mark.slow
def test_slots_are_named_and_shared():
    slots = EpochSlots()
    assert (slots.epoch, slots.delivered, slots.is_resumed, slots.first) == (0, -1, True, 0)
    slots.epoch = 3
    slots.deliver(2, resumed=False, first=1)
    slots.generation = 5
    child = os.fork()
    if child == 0:
        seen = (slots.epoch, slots.delivered, slots.is_resumed, slots.first, slots.generation)
        slots.epoch = 4
        os._exit(0 if seen == (3, 2, False, 1, 5) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert slots.epoch == 4
    own = slots.copied()
    assert (own.epoch, own.delivered, own.generation) == (4, -1, 5)
    own.epoch = 9
    assert slots.epoch == 4


def test_the_counter_is_of_the_same_memory():
    slots = EpochSlots()
    iteration = slots.counter.begin()
    assert slots.counter.iteration == iteration
    assert (slots.epoch, slots.generation) == (0, 0)


def test_a_plan_that_was_sent_plans_again_without_its_query(folder):
    plan = plan_of(folder)
    assert plan.is_at_home
    assert plan.core.num_splits == 10
    sent = pickle.loads(pickle.dumps(plan.sent(2, False, Progress(0))))
    assert (sent.query, sent.core, sent.builder) == (None, None, None)
    assert sent.must_move
    assert not sent.is_at_home
    sent.move(2, False, Progress(0))
    assert not sent.must_move
    assert sent.core.num_splits == 10
    assert sent.core.fingerprint == plan.core.fingerprint == plan.constant["fingerprint"]
    ours, theirs = plan.epochs.shards(2, 1), sent.epochs.shards(2, 1)
    for worker in range(2):
        assert ours.pieces(0, worker) == theirs.pieces(0, worker)


def test_a_plan_for_workers_that_start_has_the_share_of_its_rank(folder):
    plan = plan_of(folder, 1, 2)
    sent = plan.sent(1, True, Progress(0, 1))
    sent.move(1, True, Progress(0, 1))
    assert (plan.epochs.is_part, sent.epochs.is_part) == (False, True)
    for epoch in range(2):
        ours, theirs = plan.epochs.shards(1, epoch), sent.epochs.shards(1, epoch)
        assert ours.pieces(1, 0) == theirs.pieces(1, 0)


def test_what_fails_within_kept_leaves_the_plan_as_it_was(folder):
    plan = plan_of(folder)
    core, constant = plan.core, plan.constant
    other = tq.Session().sql(f"SELECT id + 1 AS id FROM '{folder}'")
    with pytest.raises(RuntimeError), plan.kept():
        plan.open(other)
        assert plan.core is not core
        raise RuntimeError
    assert plan.core is core
    assert plan.constant is constant


def test_a_state_goes_on_where_another_one_stopped(folder):
    state = EpochState(plan_of(folder))
    progress = state.begin(0, 3, None)
    progress.step = 4
    saved = json.loads(json.dumps(state.of(progress)))
    assert (saved["epoch"], saved["step"]) == (3, 4)
    other = EpochState(plan_of(folder))
    other.load(saved)
    assert other.slots.epoch == 3
    assert other.current() == saved
    resumed = other.begin(0, 3, other.loaded)
    assert resumed.step == 4
    assert other.steps(resumed) == state.steps(progress) == -(-ROWS // BATCH)


def test_the_end_of_an_epoch_begins_the_next_one_unless_one_was_chosen(folder):
    state = EpochState(plan_of(folder))
    progress = state.begin(0, 0, None)
    state.finished(progress)
    assert state.slots.epoch == 1
    assert state.ended is progress
    progress = state.begin(0, 1, None)
    state.choose(7)
    state.finished(progress)
    assert state.slots.epoch == 7
    assert state.progress.epoch == 7


def test_a_change_outdates_workers_that_live_on(folder):
    state = EpochState(plan_of(folder))
    worker = pickle.loads(pickle.dumps(state.sent()))
    worker.here()
    # In this test it shares no memory with the state that it is a copy of.
    worker.slots = state.slots
    assert not worker.is_outdated
    state.changed()
    assert worker.is_outdated


def test_a_state_has_slots_of_its_own_where_it_is_a_copy(folder):
    state = EpochState(plan_of(folder))
    assert not state.settle()
    copy = state.sent()
    slots = copy.slots
    assert copy.settle()
    assert copy.slots is not slots
    assert not copy.settle()


@pytest.mark.slow
def test_a_tracer_finds_the_rows_of_a_batch(folder):
    state = EpochState(plan_of(folder))
    tracer = Tracer(state)
    trace = tracer.trace(0, 2, 0)
    assert trace.rows == BATCH
    assert [(each.split, each.start, each.end) for each in trace.ranges] == [(1, 6, 10), (2, 0, 4)]
    assert tracer.shard_plan(3).num_workers == 3
    with pytest.raises(tq.ConfigError, match="no batch of epoch 0"):
        tracer.trace(None, None, None)


def test_a_tracer_looks_at_the_training_process_alone(folder):
    copy = EpochState(plan_of(folder)).sent()
    for look in (lambda: Tracer(copy).shard_plan(0), lambda: Tracer(copy).trace(0, 0, 0)):
        with pytest.raises(tq.ConfigError, match="is for the"):
            look()
