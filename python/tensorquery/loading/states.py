"""States of a dataset: which rows of the epoch the training loop has received, and how to go on from there."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import get_worker_info

from tensorquery._util.options import MOST_EPOCHS, check_non_negative_int
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.accelerate import refuse_foreign
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.iterator import ShardIterator
from tensorquery.loading.planning import PlannedDataset
from tensorquery.sharding.checkpoint import (
    check_same,
    check_state,
    check_sum,
    check_sum_base,
    run_of,
)
from tensorquery.sharding.dynamic_assignment import Ledger

__all__ = ["StatefulDataset"]

_RUN_OF_STATE = ("epoch", "layout", "step", "cursors", "turns", "parents")


class StatefulDataset(PlannedDataset):
    """How far a dataset has come in its epoch, as a state that can be saved and loaded."""

    _epoch: torch.Tensor
    _progress: Progress
    _ended: Progress | None
    _loaded: dict[str, Any] | None
    _awaited: dict[str, Any] | None
    _newest: weakref.ref[ShardIterator] | None
    _loop: weakref.ref[Any] | None
    _in_order: bool

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, and so its order. Storage is not asked again.

        After `load_state_dict` the next iteration continues the epoch of the state, whatever is set here. While an epoch
        is iterated over, this is for the one after it, and `state_dict` goes on saying how far that one was received. The
        number of the epoch that is being iterated over changes nothing: to repeat it, set it after its last batch.

        Args:
            epoch: From 0. Persistent workers follow it too.

        Raises:
            ConfigError: It is not a whole number of 0 to 2^62.
        """
        refuse_foreign(self)
        chosen = check_non_negative_int("epoch", epoch, MOST_EPOCHS)
        self._epoch[0] = chosen
        if not self._is_read():
            self._progress.left = chosen != self._progress.epoch

    def state_dict(self) -> dict[str, Any]:
        """Which rows of the epoch were consumed, as plain data.

        In the training process: the batches that this dataset's iterator has handed out. In a DataLoader worker:
        those that this worker has yielded. A loader of `create_dataloader` counts what the training loop has
        received: use its ``state_dict``.

        Returns:
            A state for `load_state_dict`, ready for JSON. After an epoch's last batch it begins the next epoch, or the one
            that was set; what is set while an epoch is iterated over does not change the state of that one.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        progress = self._progress
        if progress.left or not progress.begun:
            progress = Progress(self.epoch, progress.workers)
        return self._state_of(progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved: the next iteration delivers exactly the rest of its epoch.

        On the same topology the batches are bit-identical; with another number of ranks or workers or another
        batch size, the rows not consumed yet are divided anew. With equal steps the state of any one rank
        will do; otherwise give `merge_state_dicts` of all of them.

        Args:
            state: What ``state_dict()`` or `merge_state_dicts` returned.

        Raises:
            CheckpointMismatchError: It is of another query, seed or file list; names what differs.
        """
        checked = self._checked(state)
        self._loaded = checked
        # The epoch is shared: a worker's state must not change it for the others.
        if not self._is_in_worker():
            self._epoch[0] = checked["epoch"]

    def _state_of(self, progress: Progress, worker: int | None = None) -> dict[str, Any]:
        workers = self._workers if progress.workers is None else progress.workers
        if self._epochs.is_dynamic(workers) and self._is_in_worker():
            raise ConfigError(
                'with assignment="dynamic" a worker knows only what it took itself; save loader.state_dict() in the '
                "training process"
            )
        # The layout is kept for the next state, and this one is the caller's to change.
        layout = self._epochs.layout(workers)
        cursors, known = {}, progress.cursors
        if known is None and not self._follows(workers):
            # A rank that has not begun: other ranks may have, and their states are merged.
            shards = max(1, workers) + self._epochs.is_dynamic(workers)
            known = [[] for _ in range(shards)]
        if progress.ledger is not None:
            known = [*progress.ledger.cursors()]
        if known is not None:
            cursors[str(self.rank)] = [
                json.loads(cursor) if isinstance(cursor, str) else cursor for cursor in known
            ]
        state = {
            **self._constant,
            "epoch": progress.epoch,
            "layout": {**layout, "mixing": dict(layout["mixing"])},
            "step": progress.step,
            "cursors": cursors,
            "turns": {str(self.rank): progress.turn} if cursors else {},
            "parents": list(progress.parents),
        }
        ended = self._ended
        if cursors and not progress.step and ended is not None and ended.epoch != progress.epoch:
            # Other ranks may still be in that epoch, and their states are merged with this one.
            state["ended"] = {
                key: value for key, value in self._state_of(ended).items() if key in _RUN_OF_STATE
            }
        if progress.base is None:
            progress.base = check_sum_base(state["layout"], state["parents"])
        state["check"] = check_sum(state, progress.base)
        return state if worker is None else {**state, "worker": worker}

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        checked = check_state(state)
        with self._kept():
            self._follow_pins(checked)
            self._follow_quarantine(checked)
            check_same(checked, self._constant, self._file_names())
            self._check_worker(checked)
        self._changed()
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

    def _iterator(self) -> ShardIterator | None:
        """The newest iterator in this process, if it is not closed."""
        newest = None if self._newest is None else self._newest()
        return None if newest is None or newest.closed else newest

    def _is_read(self) -> bool:
        """Whether somebody may still ask for the next batch of the run."""
        loop = None if self._loop is None else self._loop()
        return self._iterator() is not None or (loop is not None and loop.gi_frame is not None)

    def _is_under_way(self) -> bool:
        """Whether an epoch has begun of which rows are received, or may still be."""
        progress = self._progress
        is_open = progress.begun and not progress.left
        return is_open and bool(progress.step or progress.parents or self._is_read())

    def _begin(self, workers: int, epoch: int, state: dict[str, Any] | None) -> Progress:
        """Start an epoch, from a state where there is one."""
        shards = max(1, workers)
        progress = Progress(epoch, workers, start=[[] for _ in range(shards)], begun=True)
        if self._is_in_worker() or not self._follows(workers):
            progress.cursors = [[] for _ in range(shards)]
        if state is not None:
            self._restore(progress, state, workers)
        self._epochs.prepare(workers, progress.parents)
        if self._epochs.is_dynamic(workers) and not self._is_in_worker():
            dealt = self._epochs.shards(workers, epoch, progress.parents)
            progress.ledger = Ledger(workers, dealt.num_pieces(self.rank))
        self._progress, self._awaited = progress, None
        return progress

    def _follows(self, workers: int) -> bool:
        """Whether all cursors follow from the number of steps."""
        layout = self._epochs.layout(workers)
        return bool(layout["counted"]) and (self._in_order or workers <= 1)

    def _restore(self, progress: Progress, state: dict[str, Any], workers: int) -> None:
        run, parents = run_of(state), tuple(state["parents"])
        differs = run["layout"] != self._epochs.layout(workers)
        is_anew = bool(run["step"]) and (differs or self._epochs.is_dynamic(workers))
        if is_anew:
            if state.get("worker") is not None:
                raise CheckpointMismatchError(
                    "the state of a DataLoader worker goes on with the same batch size, number of ranks and "
                    "options of order; the state of create_dataloader's loader goes on with others too"
                )
            parents = (*parents, run)
        if parents:
            # What other ranks left is dealt anew.
            self._widen()
        progress.parents = parents
        if is_anew or not run["step"]:
            return
        self._epochs.prepare(workers, [*parents, run])
        shards = self._epochs.shards(workers, progress.epoch, parents)
        text = json.dumps(run)
        progress.start = [
            shards.cursor_of(text, self.rank, worker) for worker in range(max(1, workers))
        ]
        progress.step = sum(cursor[0] for cursor in progress.start if cursor)
        turn = state["turns"].get(str(self.rank), progress.step)
        progress.turn = turn % max(1, workers)
        if progress.cursors is not None:
            progress.cursors = list(progress.start)

    def _steps(self, progress: Progress) -> int | None:
        """The step with which this rank's epoch ends, where that is known before."""
        workers = progress.workers or 0
        if self._epochs.is_dynamic(workers):
            return None
        shards = self._epochs.shards(workers, progress.epoch, progress.parents)
        total = 0
        for worker in range(max(1, workers)):
            batches, _ = shards.size(self.rank, worker)
            if batches is None or not shards.is_fixed(self.rank, worker):
                return None
            total += batches
        return total

    def _finished(self, progress: Progress) -> None:
        """After the last batch: the next iteration delivers the next epoch, unless one was set."""
        if self._ended is progress:
            # With the last batch. An epoch that was set since is the next one, be it the same once more.
            return
        if self.epoch == progress.epoch:
            self._epoch[0] = progress.epoch + 1
        self._ended = progress
        if self._progress is progress:
            self._progress = Progress(self.epoch, progress.workers)
