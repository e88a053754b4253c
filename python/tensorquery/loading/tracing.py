"""What a dataset can say of its splits and batches: how splits are dealt, and which rows a batch was made of."""

from __future__ import annotations

import os

from tensorquery._util.options import check_non_negative_int
from tensorquery.errors import ConfigError
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.states import StatefulDataset
from tensorquery.sharding.shard_plan import ShardPlan
from tensorquery.sharding.trace import Place, Trace, trace_batch

__all__ = ["TracedDataset"]


class TracedDataset(StatefulDataset):
    """A dataset in the training process, with its plan at hand."""

    batch_size: int

    def shard_plan(self, num_workers: int = 0) -> ShardPlan:
        """How the splits are dealt to all ranks and workers.

        Args:
            num_workers: Worker processes per rank.

        Returns:
            The plan of the current epoch; with ``assignment="dynamic"`` that of the ranks, whose workers share it.

        Raises:
            ConfigError: Called inside a worker, which knows only its own share.
        """
        if self._plan is None or self._process != os.getpid():
            raise ConfigError(
                "shard_plan() is for the training process; a worker knows only its share"
            )
        self._widen()
        epochs = self._epochs
        return ShardPlan(
            self._plan,
            self.world_size,
            0 if self._deal.assignment == "dynamic" else num_workers,
            self._deal.strategy,
            epoch=self.epoch,
            batch_size=self.batch_size,
            epochs=epochs,
            quarantined=len(self._quarantine.listed),
        )

    def trace(
        self, rank: int | None = None, step: int | None = None, *, epoch: int | None = None
    ) -> Trace:
        """Find the rows of a batch: their splits, files, row groups and physical rows.

        Batches before it are not simulated, and other ranks take no part. Rows are counted where that was not done
        yet, and the splits of the batch are read again.

        Steps count from 0, in the order in which this rank receives its batches: after n batches of an epoch the
        last one is step n - 1. A run that was resumed on the same topology goes on counting, and may trace the steps
        before the resume too; on another topology step 0 is the first batch after the resume.

        Args:
            rank: The rank that delivers it, any of the topology; None: this one.
            step: Which of its batches; None: the last one received.
            epoch: The epoch; None: that of the last batch received, or, before any, the one that is delivered next.

        Returns:
            The trace; its ``ranges`` go into ``exclude=`` of a later run.

        Raises:
            ConfigError: There is no such rank or step, or nothing was received yet; names the bounds.
            DataError: A file cannot be read, or has other rows than were counted.
        """
        if self._plan is None or self._process != os.getpid():
            raise ConfigError(
                "trace() is for the dataset that was made in this process; a worker, and a copy, know only the batches that "
                "they have yielded"
            )
        self._widen()
        rank = self.rank if rank is None else check_non_negative_int("rank", rank)
        if rank >= self.world_size:
            raise ConfigError(
                f"rank {rank} must be in 0..{self.world_size} (world_size is {self.world_size})"
            )
        run = self._traced(None if epoch is None else check_non_negative_int("epoch", epoch))
        if step is None and not run.step:
            raise ConfigError(
                f"no batch of epoch {run.epoch} was received yet, so there is no last one to trace; say which: "
                "trace(step=0)"
            )
        step = run.step - 1 if step is None else check_non_negative_int("step", step)
        workers = self._workers if run.workers is None else run.workers
        if self._epochs.is_dynamic(workers):
            raise ConfigError(
                'with assignment="dynamic" which worker takes which split follows from their speed, so a step may be '
                'any batch; trace a loader with assignment="static"'
            )
        if workers > 1 and not self._in_order:
            raise ConfigError(
                f"with in_order=False the {workers} workers deliver in the order of their speed, so a step may be any "
                "batch; trace a loader with in_order=True"
            )
        return trace_batch(
            self._plan,
            self._epochs,
            Place(run.epoch, rank, step, workers, run.parents),
            permuted=self._deal.is_global,
            drawn_from=None if self._deal.weighing is None else lambda: self._stage,
            count=self._count_splits,
        )

    def _traced(self, epoch: int | None) -> Progress:
        """The run of an epoch that is traced; None: the run in which a batch was received last."""
        runs = [self._progress] if self._ended is None else [self._progress, self._ended]
        state = self._loaded if self._awaited is None else self._awaited
        if state is not None:
            # Not begun yet: what it goes on from was received by the process that saved it.
            loaded = Progress(state["epoch"], self._workers)
            self._restore(loaded, state, self._workers)
            runs = [loaded]
        if epoch is None:
            received = next((run for run in runs if run.step), None)
            if received is not None:
                return received
            epoch = self.epoch
        return next((run for run in runs if run.epoch == epoch), Progress(epoch))
