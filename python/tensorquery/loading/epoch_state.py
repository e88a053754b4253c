"""States of a dataset: which rows of the epoch the training loop has received, and how to go on from there."""

from __future__ import annotations

import copy
import json
import os
import weakref
from collections.abc import Mapping
from typing import Any

from torch.utils.data import get_worker_info

from tensorquery import _core
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.deliveries import Deliveries
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import ShardIterator
from tensorquery.loading.plan import DatasetPlan
from tensorquery.loading.tensors import BatchBuilder
from tensorquery.loading.workers.epoch_slots import EpochSlots
from tensorquery.sharding.altered import Altered
from tensorquery.sharding.checkpoint import (
    check_same,
    check_state,
    check_sum,
    check_sum_base,
    run_of,
)
from tensorquery.sharding.dynamic_assignment import Ledger
from tensorquery.sharding.left import Left
from tensorquery.sharding.packed_cursors import pack_cursor

__all__ = ["EpochState"]

_RUN_OF_STATE = ("epoch", "layout", "step", "cursors", "turns", "left")


class EpochState:
    """How far a dataset has come in its epoch, as a state that can be saved and loaded.

    Args:
        plan: The plan of the epochs.

    Attributes:
        plan: The plan.
        loaded: The state with which the next iteration begins.
        awaited: The state loaded into the loader, with which its next iteration begins.
        newest: The newest iterator in this process.
        loop: The iterator of a loader that hands out what its workers send.
        workers: Worker processes of the loader.
        in_order: Whether the loader delivers the batches of its workers in turn.
        starts_workers: Whether our own loader starts its workers just now, and so in the copies that these have.
        deliveries: What was delivered in this process, for the receipt.
        altered: How the query was altered since the run began; None where it was not.
        generation: How often the plan has changed, or a state was loaded; in a worker, until it was made.
    """

    def __init__(self, plan: DatasetPlan) -> None:
        self.plan = plan
        self._slots = EpochSlots()
        self._progress = Progress(0)
        self._ended: Progress | None = None
        self.loaded: dict[str, Any] | None = None
        self.awaited: dict[str, Any] | None = None
        self.newest: weakref.ref[ShardIterator] | None = None
        self.loop: weakref.ref[Any] | None = None
        self.workers = 0
        self.in_order = True
        self.starts_workers = False
        self.deliveries = Deliveries()
        self.altered: Altered | None = None
        self.generation = 0
        self._shares_in = os.getpid()
        # The iteration for which a worker process was made: one that starts late must not take from a newer one.
        self._iteration: int | None = None

    @property
    def slots(self) -> EpochSlots:
        """What workers that live on see."""
        self._note_end()
        return self._slots

    @slots.setter
    def slots(self, slots: EpochSlots) -> None:
        self._slots = slots

    @property
    def progress(self) -> Progress:
        """How far the epoch has come that is delivered."""
        self._note_end()
        return self._progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._progress = progress

    @property
    def ended(self) -> Progress | None:
        """How the last epoch ended."""
        self._note_end()
        return self._ended

    @ended.setter
    def ended(self, ended: Progress | None) -> None:
        self._ended = ended

    def _note_end(self) -> None:
        """Go on to the next epoch where the last batch was received: with a batch, only attributes are set."""
        if self._progress.over:
            self.finished(self._progress)

    def here(self) -> tuple[_core.Plan, BatchBuilder]:
        """Plan and builder of this process; a worker plans once, from the recipe."""
        plan = self.plan
        if plan.must_move:
            plan.move(self.workers, self.starts_workers, self.progress)
            self.newest = None
        assert plan.core is not None
        assert plan.builder is not None
        return plan.core, plan.builder

    def sent(self) -> EpochState:
        """A copy that can be pickled, for a worker process or a copy of the dataset."""
        sent = copy.copy(self)
        sent.plan = self.plan.sent(self.workers, self.starts_workers, self.progress)
        sent.newest = sent.loop = None
        sent.deliveries = Deliveries()
        sent._shares_in = -1
        return sent

    def settle(self) -> bool:
        """Have memory of its own to share with workers, where this is a copy, or a fork of the process that had it.

        Returns:
            Whether it is new.
        """
        if self._shares_in == os.getpid():
            return False
        self.slots = self.slots.copied()
        self._shares_in = os.getpid()
        return True

    def changed(self) -> None:
        """Note that workers which live on from now on know an older plan, or an older state."""
        if not self.plan.is_in_worker:
            self.generation += 1
            self.slots.generation = self.generation

    @property
    def is_outdated(self) -> bool:
        """Whether this is a worker that lives on after what it knows has changed.

        In its first iteration it may be late; then that iteration has the epoch it knows.
        """
        lives_on = self.plan.planned_in == os.getpid()
        return lives_on and self.generation != self.slots.generation

    def take_anew(self) -> None:
        """Before the workers of an iteration start or go on: they take all splits again, older ones none."""
        self._iteration = self.slots.counter.begin()

    def taking(self) -> int:
        """The iteration in which this worker process takes splits: the first time that for which it was made.

        A worker that lives on hears of the next iteration from torch, which waits until all have heard of it.
        """
        iteration, self._iteration = self._iteration, None
        return self.slots.counter.iteration if iteration is None else iteration

    def choose(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.slots.epoch = epoch
        if not self._is_read():
            self.progress.abandoned = epoch != self.progress.epoch

    def current(self) -> dict[str, Any]:
        """Which rows of the epoch were consumed; see `QueryDataset.state_dict`."""
        if self.loaded is not None:
            return dict(self.loaded)
        progress = self.progress
        if progress.abandoned or not progress.begun:
            progress = Progress(self.slots.epoch, progress.workers)
        return self.of(progress)

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved; see `QueryDataset.load_state_dict`."""
        checked = self.checked(state)
        self.loaded = checked
        # The epoch is shared: a worker's state must not change it for the others.
        if not self.plan.is_in_worker:
            self.slots.epoch = checked["epoch"]

    def of(self, progress: Progress, worker: int | None = None) -> dict[str, Any]:
        """The state of a run; with `worker`, of that worker's yielded part."""
        workers = self.workers if progress.workers is None else progress.workers
        if self.plan.epochs.is_dynamic(workers) and self.plan.is_in_worker:
            raise ConfigError(
                'with assignment="dynamic" a worker knows only what it took itself; save loader.state_dict() in the '
                "training process"
            )
        # The layout is kept for the next state, and this one is the caller's to change.
        layout = self.plan.epochs.layout(workers)
        cursors, known = {}, progress.cursors
        if known is None and not self.follows(workers):
            # A rank that has not begun: other ranks may have, and their states are merged.
            shards = max(1, workers) + self.plan.epochs.is_dynamic(workers)
            known = [[] for _ in range(shards)]
        if progress.ledger is not None:
            known = [*progress.ledger.cursors()]
        if known is not None:
            cursors[str(self.plan.topology.rank)] = [
                pack_cursor(json.loads(cursor) if isinstance(cursor, str) else cursor)
                for cursor in known
            ]
        state = {
            **self.plan.constant,
            "epoch": progress.epoch,
            "layout": {**layout, "mixing": dict(layout["mixing"])},
            "step": progress.step,
            "cursors": cursors,
            "turns": {str(self.plan.topology.rank): progress.turn} if cursors else {},
            "left": None if progress.left is None else progress.left.to_dict(),
        }
        if self.altered is not None:
            state["altered"] = self.altered.to_dict(progress.epoch)
        ended = self.ended
        if cursors and not progress.step and ended is not None and ended.epoch != progress.epoch:
            # Other ranks may still be in that epoch, and their states are merged with this one.
            state["ended"] = {
                key: value for key, value in self.of(ended).items() if key in _RUN_OF_STATE
            }
        if progress.base is None:
            progress.base = check_sum_base(state["layout"], state["left"], state.get("altered"))
        state["check"] = check_sum(state, progress.base)
        return state if worker is None else {**state, "worker": worker}

    def checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state of this query, whose pins and bad parts the plan follows from now on.

        Raises:
            CheckpointMismatchError: It is of another query, seed or file list; names what differs.
        """
        checked = check_state(state)
        with self.plan.kept():
            altered = Altered.read(checked.get("altered"), checked["epoch"])
            self.plan.follow_pins(checked)
            if altered is not None:
                self.plan.follow_weights(altered.weights, checked)
            self.plan.follow_quarantine(checked)
            check_same(checked, self.plan.constant, self.plan.file_names())
            self._check_worker(checked)
        self.altered = altered
        self.changed()
        return checked

    def _check_worker(self, checked: Mapping[str, Any]) -> None:
        """Check that the state of a worker is loaded in that worker."""
        info, worker = get_worker_info(), checked.get("worker")
        if worker is not None:
            here = (
                "the training process"
                if info is None
                else f"worker {info.id} of {info.num_workers}"
            )
            if info is None or (info.id, info.num_workers) != (
                worker,
                checked["layout"]["num_workers"],
            ):
                raise CheckpointMismatchError(
                    f"this is the state of worker {worker} of {checked['layout']['num_workers']}, loaded in {here};"
                    " resume with the same num_workers, or save loader.state_dict() of create_dataloader's loader"
                )

    def iterator(self) -> ShardIterator | None:
        """The newest iterator in this process, if it is not closed."""
        newest = None if self.newest is None else self.newest()
        return None if newest is None or newest.closed else newest

    def _is_read(self) -> bool:
        """Whether somebody may still ask for the next batch of the run."""
        loop = None if self.loop is None else self.loop()
        return self.iterator() is not None or (loop is not None and loop.is_open)

    def is_under_way(self) -> bool:
        """Return True if an epoch has begun whose rows were received, or may still be."""
        progress = self.progress
        is_open = progress.begun and not progress.abandoned
        return is_open and bool(progress.step or progress.left or self._is_read())

    def begin(self, workers: int, epoch: int, state: dict[str, Any] | None) -> Progress:
        """Start an epoch, from a state where there is one."""
        shards = max(1, workers)
        progress = Progress(epoch, workers, start=[[] for _ in range(shards)], begun=True)
        if self.plan.is_in_worker or not self.follows(workers):
            progress.cursors = [[] for _ in range(shards)]
        if state is not None:
            self.restore(progress, state, workers)
        self.plan.epochs.prepare(workers)
        if self.plan.epochs.is_dynamic(workers) and not self.plan.is_in_worker:
            dealt = self.plan.epochs.shards(workers, epoch, progress.left)
            progress.ledger = Ledger(workers, dealt.num_pieces(self.plan.topology.rank))
        self.deliveries.begun(self.plan, progress)
        self.progress, self.awaited = progress, None
        return progress

    def follows(self, workers: int) -> bool:
        """Whether all cursors follow from the number of steps."""
        layout = self.plan.epochs.layout(workers)
        is_counted = bool(layout["counted"]) and not self.plan.deal.refills
        return is_counted and (self.in_order or workers <= 1)

    def restore(self, progress: Progress, state: dict[str, Any], workers: int) -> None:
        """Set `progress` to where a state was saved."""
        run, left = run_of(state), Left.read(state["left"])
        differs = run["layout"] != self.plan.epochs.layout(workers)
        is_anew = bool(run["step"]) and (differs or self.plan.epochs.is_dynamic(workers))
        if is_anew and state.get("worker") is not None:
            raise CheckpointMismatchError(
                "the state of a DataLoader worker goes on with the same batch size, number of ranks and "
                "options of order; the state of create_dataloader's loader goes on with others too"
            )
        if left is not None or run["step"]:
            self.check_numbering(run["layout"], workers)
        if left is not None or is_anew:
            # The rows that other ranks left are dealt anew.
            self.plan.widen()
        if is_anew:
            left = self.plan.epochs.left_after(progress.epoch, left, run)
        progress.left = left
        if is_anew or not run["step"]:
            return
        self.plan.epochs.prepare(workers, run)
        shards = self.plan.epochs.shards(workers, progress.epoch, left)
        text = json.dumps(run)
        progress.start = [
            shards.cursor_of(text, self.plan.topology.rank, worker)
            for worker in range(max(1, workers))
        ]
        progress.step = sum(cursor[0] for cursor in progress.start if cursor)
        turn = state["turns"].get(str(self.plan.topology.rank), progress.step)
        progress.turn = turn % max(1, workers)
        if progress.cursors is not None:
            progress.cursors = list(progress.start)

    def check_numbering(self, layout: Mapping[str, Any], workers: int) -> None:
        """Check that rows have the same numbers in a run of `layout` and in this one."""
        if layout["permuted"] != self.plan.epochs.layout(workers)["permuted"]:
            raise CheckpointMismatchError(
                'the state belongs to another run; what differs: shuffle="global" or sample_weight=, under which an epoch '
                "has rows in another numbering. Resume with what the run was started with"
            )

    def for_workers(self, state: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """A state with which worker processes begin as `progress` has begun with `state`.

        They know only their share of what is left, and could not find it.
        """
        left = None if progress.left is None else progress.left.to_dict()
        if left == state["left"]:
            return state
        layout = self.plan.epochs.layout(progress.workers or 0)
        return {**state, "layout": layout, "step": 0, "cursors": {}, "turns": {}, "left": left}

    def sizes(self, rank: int) -> list[tuple[int, int]]:
        """Batches and rows of each worker of a rank in the epoch that comes next; counted where nobody knows them."""
        self.plan.epochs.prepare(self.workers)
        for counted in (False, True):
            if counted:
                self.plan.widen()
                self.plan.epochs.count()
            shards = self.plan.epochs.shards(self.workers, self.slots.epoch)
            workers = self.plan.epochs.shards_per_rank(self.workers)
            sizes = [shards.size(rank, worker) for worker in range(workers)]
            known = [
                (batches, rows)
                for batches, rows in sizes
                if batches is not None and rows is not None
            ]
            if len(known) == len(sizes):
                return known
        raise AssertionError("counted rows have a number")

    def steps(self, progress: Progress) -> int | None:
        """The step with which this rank's epoch ends, where that is known before."""
        workers = progress.workers or 0
        is_alone = self.plan.topology.world_size == 1
        if self.plan.epochs.is_dynamic(workers) or (self.plan.deal.refills and is_alone):
            return None
        shards = self.plan.epochs.shards(workers, progress.epoch, progress.left)
        total = 0
        for worker in range(max(1, workers)):
            batches, _ = shards.size(self.plan.topology.rank, worker)
            if batches is None or not shards.is_fixed(self.plan.topology.rank, worker):
                return None
            total += batches
        return total

    def finished(self, progress: Progress) -> None:
        """After the last batch: the next iteration delivers the next epoch, unless one was set."""
        if self._ended is progress:
            # With the last batch. An epoch that was set since is the next one, be it the same once more.
            return
        slots, following = self._slots, self._progress
        if slots.epoch == progress.epoch:
            slots.epoch = progress.epoch + 1
        if following is progress:
            following = Progress(slots.epoch, progress.workers)
        # Together: what a signal interrupts before is done again.
        self._progress, self._ended = following, progress
