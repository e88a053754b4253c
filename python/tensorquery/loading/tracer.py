"""Traces a dataset: how its splits are dealt, and which rows a batch was made of."""

from __future__ import annotations

from typing import Any

from tensorquery._util.options import check_non_negative_int
from tensorquery.errors import ConfigError
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.sharding.delivered import Dealt, Share
from tensorquery.sharding.failed_rows import FailedRow, find_failed
from tensorquery.sharding.shard_plan import ShardPlan
from tensorquery.sharding.trace import Trace, trace_batch

__all__ = ["Tracer"]


class Tracer:
    """Looks at the plan and the runs of a dataset in the training process.

    Args:
        state: The runs, and the plan that they are of.
    """

    def __init__(self, state: EpochState) -> None:
        self._state = state
        self._found: dict[Any, list[FailedRow]] = {}

    def shard_plan(self, num_workers: int) -> ShardPlan:
        """How the splits are dealt to all ranks and workers; see `QueryDataset.shard_plan`."""
        plan = self._state.plan
        if plan.core is None or not plan.is_at_home:
            raise ConfigError(
                "shard_plan() is for the training process; a worker knows only its share"
            )
        plan.widen()
        epochs = plan.epochs
        return ShardPlan(
            plan.core,
            plan.topology.world_size,
            0 if plan.deal.assignment == "dynamic" else num_workers,
            plan.deal.strategy,
            epoch=self._state.slots.epoch,
            batch_size=plan.deal.batch_size,
            epochs=epochs,
            quarantined=len(plan.quarantine.listed),
        )

    def trace(self, rank: int | None, step: int | None, epoch: int | None) -> Trace:
        """Find the rows of a batch; see `QueryDataset.trace`."""
        state, plan = self._state, self._state.plan
        self._check_home("trace()")
        if plan.deal.refills:
            raise ConfigError(
                'with on_transform_error="skip" the rows of a step depend on which rows before it failed, and are not known '
                "without transforming them again; dataset.failed_rows has those that failed. Trace a loader without it"
            )
        plan.widen()
        assert plan.core is not None
        rank = plan.topology.rank if rank is None else check_non_negative_int("rank", rank)
        if rank >= plan.topology.world_size:
            raise ConfigError(
                f"rank {rank} must be in 0..{plan.topology.world_size} (world_size is {plan.topology.world_size})"
            )
        run = self._traced(None if epoch is None else check_non_negative_int("epoch", epoch))
        if step is None and not run.step:
            raise ConfigError(
                f"no batch of epoch {run.epoch} was received yet, so there is no last one to trace; say which: "
                "trace(step=0)"
            )
        step = run.step - 1 if step is None else check_non_negative_int("step", step)
        workers = state.workers if run.workers is None else run.workers
        if plan.epochs.is_dynamic(workers):
            raise ConfigError(
                'with assignment="dynamic" which worker takes which split follows from their speed, so a step may be '
                'any batch; trace a loader with assignment="static"'
            )
        if workers > 1 and not state.in_order:
            raise ConfigError(
                f"with in_order=False the {workers} workers deliver in the order of their speed, so a step may be any "
                "batch; trace a loader with in_order=True"
            )
        share = Share(run.epoch, rank, workers, run.left)
        rows_of = None if plan.windows is None else plan.windows.rows_of
        return trace_batch(plan.core, self._dealt_again(), share, step, rows_of)

    def _dealt_again(self) -> Dealt:
        """The rows of the whole plan, dealt again."""
        plan = self._state.plan
        assert plan.core is not None
        return Dealt(
            plan.core,
            plan.epochs,
            permuted=plan.deal.is_global,
            drawn_from=None if plan.deal.weighing is None else lambda: plan.stage,
            count=plan.count_splits,
        )

    def failed_rows(self) -> list[FailedRow]:
        """The rows that were left out; see `QueryDataset.failed_rows`."""
        state, plan = self._state, self._state.plan
        self._check_home("failed_rows")
        found: list[FailedRow] = []
        for run in (state.ended, state.progress):
            if run is None or not run.failed:
                continue
            key = (run.epoch, run.workers, run.left, run.failed)
            if key not in self._found:
                plan.widen()
                assert plan.core is not None
                share = Share(run.epoch, plan.topology.rank, run.workers or 0, run.left)
                failed = sorted(run.failed)
                self._found[key] = find_failed(plan.core, self._dealt_again(), share, failed)
                # Of older epochs, and of fewer rows, nobody asks again.
                self._found = dict([*self._found.items()][-2:])
            found += self._found[key]
        return found

    def _check_home(self, what: str) -> None:
        """Check that this is the dataset itself, in the process that made it."""
        plan = self._state.plan
        if plan.core is None or not plan.is_at_home:
            raise ConfigError(
                f"{what} is for the dataset that was made in this process; a worker, and a copy, know only the batches that "
                "they have yielded"
            )

    def _traced(self, epoch: int | None) -> Progress:
        """The run of an epoch that is traced; None: the run in which a batch was received last."""
        known = self._state
        runs = [known.progress] if known.ended is None else [known.progress, known.ended]
        state = known.loaded if known.awaited is None else known.awaited
        if state is not None:
            # Not begun yet: the process that saved the state received the batches before.
            loaded = Progress(state["epoch"], known.workers)
            known.restore(loaded, state, known.workers)
            runs = [loaded]
        if epoch is None:
            received = next((run for run in runs if run.step), None)
            if received is not None:
                return received
            epoch = known.slots.epoch
        return next((run for run in runs if run.epoch == epoch), Progress(epoch))
