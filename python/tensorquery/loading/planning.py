"""The planned half of a dataset: its plan, what describes it, its counts, and its recipe for worker processes."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tensorquery import _core
from tensorquery._util.callers import stack_level_outside
from tensorquery._util.digests import digest
from tensorquery.distributed.broadcast import Channel
from tensorquery.distributed.topology import Topology, threads_for
from tensorquery.errors import CheckpointMismatchError, ConfigError, DataError
from tensorquery.loading.accelerate import refuse_foreign
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.shared_plan import FoundPlan, find_plan
from tensorquery.loading.tensors import BatchBuilder
from tensorquery.metrics.progress import running, shows
from tensorquery.sharding.bad_files import Quarantine, Quarantined
from tensorquery.sharding.checkpoint import FORMAT, VERSION, file_digests
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.row_counts import split_counts
from tensorquery.sharding.shards import assign
from tensorquery.sql.materialize import Staging, stages_of
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.row_store import open_stage
from tensorquery.sql.stages import StagedRows

__all__ = ["PlannedDataset"]

_LOG = logging.getLogger("tensorquery")

_OF_PLAN = (
    "_query", "_staged", "_whole", "_plan", "_builder", "_recipe", "_share_recipe", "_stage", "_stage_path", "_deal", "_dealt",
    "_quarantine", "_constant",
)  # fmt: skip
"""What `PlannedDataset._open` and `_take` set."""


class PlannedDataset(IterableDataset[Any]):
    """What a dataset knows of its query: in the training process the plan, in a worker what a recipe makes of it."""

    topology: Topology
    _deal: Deal
    _dealt: Epochs
    _quarantine: Quarantine
    _skips: bool
    _staging: Staging
    _query: Query | Mixture | None
    _staged: Query | Mixture | None
    _plan: _core.Plan | None
    _builder: BatchBuilder | None
    _recipe: tuple[str, list[bytes], list[tuple[str, Any]]] | None
    _stage: _core.Stage | None
    _stage_path: str | None
    _constant: dict[str, Any]
    _split_size: tuple[int | str, int | None]
    _process_group: Any | None
    _device_mesh: Any | None
    _show_progress: bool | str
    _output_format: str
    _tensor_options: str
    _process: int
    _workers: int
    _whole: Callable[[], _core.Plan] | None
    _newest: Any
    _epoch: torch.Tensor
    _progress: Progress

    @property
    def rank(self) -> int:
        """This rank."""
        return self.topology.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def remainder(self) -> str:
        """What happens to rows that ranks and batches do not divide."""
        return self._deal.remainder

    @property
    def stages(self) -> list[StagedRows]:
        """The stages that the query reads; empty where it runs split by split as it is, and in a worker."""
        return [] if self._staged is None else stages_of(self._staged)

    def _open(self, query: Query | Mixture, channel: Channel | None = None) -> None:
        """Take over a query and plan it, before the first epoch or between two; once for all ranks of a channel."""
        # A query of its own: the user may refresh theirs, which is not to move what is planned here.
        own = (
            Query(query.session, query._core, query._narrowed)
            if isinstance(query, Query)
            else query
        )
        self._query: Query | Mixture | None = own
        # What is staged stays as long as somebody reads it.
        self._staged: Query | Mixture | None = self._stage_out(own)
        own = self._staged
        options = {
            **self._deal.options(self.world_size),
            "on_error": "skip" if self._skips else "raise",
        }
        # With on_error="skip" no rank can deal before all splits are verified, which the ranks do together: then each
        # rank gets the whole plan, and there are no shares.
        deal = None if self._skips else self._deal_out
        with running("planning", shows(self._show_progress, self.topology)):
            found = find_plan(own, self._split_size, channel, deal, options, tolerant=self._skips)
        if self._deal.weighing is not None:
            _core.Stage.check_weight(found.plan, self._deal.weighing.column)
        self._whole = found.whole
        self._builder: BatchBuilder | None = self._make_builder(found.plan)
        self._quarantine = Quarantine(own._core, found.plan, skips=self._skips)
        if self._quarantine.is_settled:
            self._take(found)
        else:
            # What is bad, and so what is dealt, is found out when it is needed: a state may say it.
            self._adopt(found.plan)
            self._constant = self._describe(own, found.plan)

    def _stage_out(self, query: Query | Mixture) -> Query | Mixture:
        """The query over what is staged of it."""
        try:
            return self._staging.apply(query)
        except DataError as error:
            if not self._skips:
                raise
            raise DataError(
                f'{error}; on_error="skip" does not reach what is staged, but for files that cannot be understood at all: a '
                "row group, stripe or byte range that is left out would change other rows, of any group. Repair the file, or "
                "leave it out by its path"
            ) from error

    def _adopt(self, plan: _core.Plan) -> None:
        """Go on with a plan, and without what was made of another one."""
        self._plan: _core.Plan | None = plan
        self._recipe: tuple[str, list[bytes], list[tuple[str, Any]]] | None = None
        self._share_recipe: (
            tuple[list[int], tuple[str, list[bytes], list[tuple[str, Any]]]] | None
        ) = None
        self._stage: _core.Stage | None = None
        self._stage_path: str | None = None

    def _take(self, found: FoundPlan) -> None:
        """Deal the splits of a plan that is settled, or go on with the share that was dealt to this rank."""
        query, plan = self._query, found.plan
        assert query is not None
        self._adopt(plan)
        if found.share is None:
            self._dealt = found.epochs or self._deal_out(plan)
        else:
            self._dealt = Epochs.of_share(
                plan, self._deal, self.topology, self._count_rows, found.share, found.known
            )
        self._constant = self._describe(query, plan)
        if self._dealt.is_known:
            # Whether equal steps are possible is known now, and not only when training begins.
            self._dealt.shards(0, 0)
        self._log_files(plan)
        self._warn_of_order()

    def _deal_out(self, plan: _core.Plan) -> Epochs:
        """How all splits of a plan are dealt."""
        if isinstance(self._query, Mixture):
            self._deal = replace(self._deal, mixture=self._query._sources(plan))
        known = None if self._deal.is_global else plan.known_counts()
        return Epochs(plan, self._deal, self.topology, self._count_rows, known)

    def _widen(self) -> None:
        """Get all splits of the plan, where this rank has only its share; for what looks at other ranks' splits too."""
        if self._whole is None or not self._epochs.is_part or self._is_in_worker():
            return
        whole, self._whole = self._whole(), None
        self._adopt(whole)
        self._dealt = self._deal_out(whole)

    @property
    def _epochs(self) -> Epochs:
        """How the good splits are dealt; which these are is found out by whoever asks first."""
        if not self._quarantine.is_settled:
            if self._is_in_worker():
                raise ConfigError(
                    'with on_error="skip" splits must be verified before worker processes start: call len(dataset) or '
                    "dataset.quarantined in the training process first, or use tensorquery.create_dataloader"
                )
            plan = self._quarantine.settle(
                topology=self.topology,
                process_group=self._group(),
                show_progress=self._show_progress,
                threads=threads_for(self.topology, 0),
            )
            self._take(FoundPlan(plan))
        return self._dealt

    @property
    def quarantined(self) -> list[Quarantined]:
        """The bad files, row groups, stripes and byte ranges that are left out; with ``on_error="skip"`` verifies.

        Files that a table was registered without (``register_parquet(…, on_error="skip")``) are among them.

        Raises:
            DataError: Every split is bad; a file changed since it was pinned; the query fails on good data.
            StorageError: A file cannot be reached.
        """
        assert self._epochs is not None
        return self._quarantine.listed

    def _follow_quarantine(self, state: Mapping[str, Any]) -> None:
        """Leave out what a state names, instead of verifying; see `Quarantine.follow`."""
        if self._is_in_worker():
            return
        plan = self._quarantine.follow(state)
        if plan is not None:
            self._take(FoundPlan(plan))
        elif self._quarantine.is_of(state):
            assert self._epochs is not None
        self._quarantine.check(state)

    def _follow_pins(self, state: Mapping[str, Any]) -> None:
        """Pin the snapshots and the moment that a state names, where Iceberg tables, or time, have moved on since."""
        query = self._query
        if query is None or self._is_in_worker():
            return
        theirs, ours = state["parts"], self._constant["parts"]
        then, now = theirs.get("snapshot") or {}, ours.get("snapshot") or {}
        if then != now and set(then) == set(now):
            try:
                query = query._at(then)
            except ConfigError as error:
                raise CheckpointMismatchError(
                    f"the state was saved at a snapshot that cannot be read any more: {error}. Start a new run without "
                    "load_state_dict"
                ) from error
        moment = theirs.get("moment")
        if moment and moment != ours.get("moment") and "moment" in ours:
            query = query._at_moment(moment)
        if query is not self._query:
            # Each rank by itself: not all of them need load a state.
            self._open(query)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What is planned stays as it is where what is done within fails."""
        before = {name: self.__dict__[name] for name in _OF_PLAN if name in self.__dict__}
        quarantine, found = self._quarantine, self._quarantine.found
        try:
            yield
        except BaseException:
            for name in _OF_PLAN:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            quarantine.found = found
            raise

    def _changed(self) -> None:
        """Note that workers which live on from now on know an older plan, or an older state."""
        if not self._is_in_worker():
            self._generation += 1
            self._epoch[5] = self._generation

    def _is_outdated(self) -> bool:
        """Whether this is a worker that lives on after what it knows has changed.

        In its first iteration it may be late, and then that iteration is of what it knows.
        """
        lives_on = self._planned_in == os.getpid()
        return lives_on and self._generation != int(self._epoch[5])

    _generation = 0
    """How often the plan has changed, or a state was loaded; in a worker, until it was made."""

    def _log_files(self, plan: _core.Plan) -> None:
        if self._constant["parts"].get("snapshot"):
            files, pruned, _, _ = plan.pruning()
            _LOG.info("%d data files before pruning, %d after", files, files - pruned)

    def _warn_of_order(self) -> None:
        """Say once where the data is sorted and the shuffle window too small for it."""
        assert self._plan is not None
        if not self._deal.shuffle and self._deal.buffer is None:
            return
        if self._dealt.is_part:
            # The rank that planned, which has all splits, says it.
            return
        lists = assign(self._plan, self.world_size, 0, "lpt", 0)
        quality = self._dealt.quality(0, lists)
        if quality is not None and quality.warning is not None:
            warnings.warn(quality.warning, UserWarning, stacklevel=stack_level_outside())

    def _count_rows(self) -> list[int]:
        plan = self._plan
        assert plan is not None
        if self._is_in_worker():
            raise ConfigError(
                "the rows of this query must be counted or staged before worker processes start: ask for dataset.num_rows in "
                "the training process first, or use tensorquery.create_dataloader"
            )
        if self._deal.is_global:
            threads = threads_for(self.topology, 0)
            show = shows(self._show_progress, self.topology)
            stage = open_stage(plan, threads=threads, show_progress=show)
            self._stage = self._weigh(stage)
            self._stage_path = stage.path
            return [self._stage.num_positions]
        return self._count_splits()

    def _weigh(self, stage: _core.Stage) -> _core.Stage:
        """The stage, from which rows are drawn by weight where that is wanted."""
        weighing = self._deal.weighing
        return stage if weighing is None else weighing.apply(stage)

    def _count_splits(self) -> list[int]:
        plan, verified = self._plan, self._quarantine.rows
        assert plan is not None
        if verified is not None:
            return verified
        counts = split_counts(
            plan,
            topology=self.topology,
            process_group=self._group(),
            show_progress=self._show_progress,
            threads=threads_for(self.topology, 0),
        )
        return counts.rows

    def _group(self) -> Any | None:
        """The process group whose ranks share the data, where it is not the global one."""
        if self._process_group is None and self._device_mesh is not None:
            return self._device_mesh.get_group()
        return self._process_group

    def _describe(self, query: Query | Mixture, plan: _core.Plan) -> dict[str, Any]:
        """What every state of this run begins with."""
        deal, files = self._deal, plan.files()
        strategy = deal.strategy if isinstance(deal.strategy, str) else type(deal.strategy).__name__
        parts = {
            **query._parts(),
            **self._quarantine.parts(),
            "splits": digest(plan.options()),
            "strategy": strategy,
            # Encoded, so that a default is the same whether it was given or not.
            "tensors": digest([self._output_format, self._tensor_options]),
            "exclude": digest(deal.exclude),
            "files": file_digests(files),
        }
        if deal.weighing is not None:
            parts["sample"] = deal.weighing.to_list()
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": plan.fingerprint,
            "parts": parts,
            "seed": deal.seed,
            **self._quarantine.constant(),
        }

    def _file_names(self) -> list[str]:
        """The paths of the query's files; none in a worker, which may have only some of them."""
        if self._plan is None or self._planned_in is not None:
            return []
        return [path for path, _ in self._plan.files()]

    def _make_builder(self, plan: _core.Plan) -> BatchBuilder:
        return BatchBuilder(plan, output_format=self._output_format, options=self._tensor_options)

    def _is_in_worker(self) -> bool:
        """Whether a worker got this dataset; one that a worker has made is like any other."""
        return get_worker_info() is not None and self._process != os.getpid()

    def _here(self) -> tuple[_core.Plan, BatchBuilder]:
        """Plan and builder of this process; a worker plans once, from the recipe."""
        if self._process != os.getpid() and self._planned_in != os.getpid():
            if self._plan is not None:
                # Forked: what would have been sent to it is made here.
                self._dealt, self._recipe = self._for_worker()
            assert self._recipe is not None
            self._plan = _core.Plan.from_recipe(*self._recipe)
            self._builder = self._make_builder(self._plan)
            self._dealt.moved_to(self._plan, self._count_rows)
            if self._stage_path is not None:
                stage = _core.Stage.open(self._stage_path, self._plan.fingerprint)
                self._stage = self._weigh(stage)
            self._planned_in = os.getpid()
            self._newest = None
        assert self._plan is not None
        assert self._builder is not None
        return self._plan, self._builder

    _starts_workers: bool = False
    """Whether our own loader starts its workers just now, and so in the copies that these have."""

    _planned_in: int | None = None
    """The worker process in which this copy was planned again."""

    def _for_worker(self) -> tuple[Epochs, tuple[str, list[bytes], list[tuple[str, Any]]]]:
        """What a worker process needs: how epochs are dealt, and a recipe for its plan.

        The workers of a loader that has begun an iteration get the share of this rank. Others may be given any state,
        and a strategy of the user's may give any split to them, so they get all splits.
        """
        epochs = self._epochs
        if epochs.is_part and self._recipe is not None:
            return Epochs.received(epochs.for_worker()), self._recipe
        assert self._plan is not None
        if epochs.is_part:
            sent, ids = epochs.for_share(self._workers, 0, ())
            self._recipe = self._plan.recipe(ids)
            return Epochs.received(sent), self._recipe
        if not self._starts_workers or not isinstance(self._deal.strategy, str):
            if self._recipe is None:
                self._recipe = self._plan.recipe()
            return Epochs.received(epochs.for_worker()), self._recipe
        progress = self._progress
        workers = self._workers if progress.workers is None else progress.workers
        sent, ids = epochs.for_share(workers, progress.epoch, progress.parents)
        if self._share_recipe is None or self._share_recipe[0] != ids:
            self._share_recipe = (ids, self._plan.recipe(ids))
        return Epochs.received(sent), self._share_recipe[1]

    def __getstate__(self) -> dict[str, Any]:
        refuse_foreign(self)
        # A worker must not count, so what it needs is counted before it starts.
        self._epochs.prepare(self._workers)
        state = dict(self.__dict__)
        state["_dealt"], state["_recipe"] = self._for_worker()
        deal = self._deal
        if state["_dealt"].is_part:
            state["_deal"] = replace(deal, mixture=replace(deal.mixture, sources=[]))
        state.update(
            _share_recipe=None,
            _whole=None,
            _plan=None,
            _builder=None,
            _newest=None,
            _loop=None,
            _process=-1,
            _shares_in=-1,
            _planned_in=None,
        )
        state.update(_process_group=None, _device_mesh=None, _stage=None, _query=None)
        state.update(_staged=None, _staging=Staging(), _watch=None)
        return state
