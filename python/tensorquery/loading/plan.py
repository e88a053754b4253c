"""The plan of a dataset: its splits, what describes them, their counts, and what worker processes get of it."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tensorquery import _core
from tensorquery._util.callers import stack_level_outside
from tensorquery._util.digests import digest
from tensorquery._util.optional import worker_info
from tensorquery.distributed.broadcast import Channel
from tensorquery.distributed.topology import Topology, threads_for
from tensorquery.errors import CheckpointMismatchError, ConfigError, DataError
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.shared_plan import FoundPlan, find_plan
from tensorquery.loading.tensors import BatchBuilder, TensorOutput
from tensorquery.loading.windowed import SeriesWindows, check_windows, find_windows
from tensorquery.metrics.progress import running, shows
from tensorquery.sharding.bad_files import Quarantine, Quarantined
from tensorquery.sharding.checkpoint import FORMAT, VERSION, file_digests
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.row_counts import split_counts
from tensorquery.sharding.shards import assign
from tensorquery.sql.materialize import stages_of
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.row_store import open_stage
from tensorquery.sql.stages import StagedRows

__all__ = ["DatasetPlan"]

_LOG = logging.getLogger("tensorquery")

Recipe = tuple[str, list[bytes], list[tuple[str, Any]]]
"""The arguments of `_core.Plan.from_recipe`."""

_OPENED = (
    "query", "_staged", "core", "builder", "stage", "deal", "quarantine", "constant", "_whole", "_recipe", "_share_recipe",
    "_stage_path", "_dealt", "windows",
)  # fmt: skip
"""The attributes that `DatasetPlan.open` and `_take` set."""


class DatasetPlan:
    """The planned query of a dataset: in a worker it is planned again, from a recipe.

    Args:
        query: The query.
        deal: How its rows are dealt.
        options: The loader's options.
        topology: The ranks.
        output: How batches come out.
        channel: The ranks for which one plans; None: each by itself.

    Attributes:
        topology: The ranks.
        deal: How rows are dealt.
        output: How batches come out.
        query: The query; None in a worker.
        core: The splits; None in a worker before `move`.
        builder: Builds batches; None in a worker before `move`.
        stage: Rows at random access, where an epoch is an order of single rows.
        windows: The windows that are samples; None: rows are.
        quarantine: The bad files and splits.
        constant: What every state of this run begins with.
        planned_in: The worker process in which this copy was planned again.
    """

    query: Query | Mixture | None
    core: _core.Plan | None
    builder: BatchBuilder | None
    stage: _core.Stage | None
    windows: SeriesWindows | None = None
    quarantine: Quarantine
    constant: dict[str, Any]

    def __init__(
        self,
        query: Query | Mixture,
        deal: Deal,
        options: LoaderOptions,
        topology: Topology,
        output: TensorOutput,
        channel: Channel | None,
    ) -> None:
        self.topology = topology
        self.deal = deal
        self.output = output
        self.planned_in: int | None = None
        self._options: LoaderOptions | None = options
        self._show_progress = options.show_progress
        self._shows = shows(options.show_progress, topology)
        self._process = os.getpid()
        self.open(query, channel)

    @property
    def group(self) -> Any | None:
        """The process group whose ranks share the data, where it is not the global one."""
        return None if self._options is None else self._options.group

    def query_and_options(self) -> tuple[Query | Mixture, LoaderOptions]:
        """The query and the options, for another plan of it in one process alone.

        Raises:
            ConfigError: This is a copy, which has neither.
        """
        if self.query is None or self._options is None:
            raise ConfigError("this is a copy of a dataset, which has no query; give the dataset")
        alone = replace(
            self._options, rank=0, world_size=1, process_group=None, device_mesh=None, partitions=None,
            remainder="even", assignment="static", transform_threads=None, show_progress=False,
        )  # fmt: skip
        return self.query, alone

    @property
    def skips(self) -> bool:
        """Whether bad parts of files are left out."""
        return self._options is not None and self._options.skips

    @property
    def jagged(self) -> list[str]:
        """The columns that come with lists of different lengths; none in a worker before `move`."""
        return [] if self.builder is None else self.builder.jagged

    @property
    def stage_mode(self) -> str:
        """Which parts of the query are staged: "auto", "never" or "always"."""
        return "auto" if self._options is None else self._options.stage

    @property
    def stages(self) -> list[StagedRows]:
        """The stages that the query reads; empty if it runs split by split without stages, and in a worker."""
        return [] if self._staged is None else stages_of(self._staged)

    def open(self, query: Query | Mixture, channel: Channel | None = None) -> None:
        """Take over a query and plan it, before the first epoch or between two; once for all ranks of a channel."""
        # A copy of the query: the user may refresh theirs, which must not move this plan.
        own = (
            Query(query.session, query._core, query._narrowed)
            if isinstance(query, Query)
            else query
        )
        chosen = self._options
        assert chosen is not None, "a copy has no query to open"
        self.query = own
        if chosen.windows is not None:
            check_windows(own, chosen, chosen.windows)
        options = {
            **self.deal.options(self.topology.world_size),
            "on_error": "skip" if chosen.skips else "raise",
        }
        # With on_error="skip" no rank can deal before all splits are verified, which the ranks do together: then each
        # rank gets the whole plan, and there are no shares.
        # Windows reach into the next split, so that each rank has all of them, too.
        deal = None if chosen.skips or chosen.windows is not None else self._deal_out

        def plan(staged: Query | Mixture, split_rows: int | None) -> FoundPlan:
            sizes = (chosen.split_bytes, split_rows)
            with running("planning", self._shows):
                return find_plan(staged, sizes, channel, deal, options, tolerant=chosen.skips)

        # A stage stays as long as somebody reads it.
        self._staged: Query | Mixture | None
        if chosen.windows is None:
            self._staged = self._stage_out(own, chosen)
            found = plan(self._staged, chosen.split_rows)
        else:
            self._staged, found, self.windows = self._find_windows(own, chosen, plan, channel)
        own = self._staged
        if self.deal.weighing is not None:
            _core.Stage.check_weight(found.plan, self.deal.weighing.column)
        self._whole = found.whole
        self.builder = self._builder_of(found.plan)
        self.quarantine = Quarantine(own._core, found.plan, skips=chosen.skips)
        if self.quarantine.is_settled:
            self._take(found)
        else:
            # The bad splits, and so the dealt ones, are found when they are needed: a state may name them.
            self._adopt(found.plan)
            self.constant = self._describe(own, found.plan)

    def _find_windows(
        self,
        query: Query | Mixture,
        chosen: LoaderOptions,
        plan: Callable[[Query | Mixture, int | None], FoundPlan],
        channel: Channel | None,
    ) -> tuple[Query, FoundPlan, SeriesWindows]:
        """The query that windows are read from, its plan, and the windows."""
        assert isinstance(query, Query)
        assert chosen.windows is not None

        def stage_out(query: Query) -> Query:
            staged = self._stage_out(query, chosen)
            assert isinstance(staged, Query)
            return staged

        threads = threads_for(self.topology, 0)
        return find_windows(query, chosen, chosen.windows, stage_out, plan, channel, threads)

    def _builder_of(self, plan: _core.Plan) -> BatchBuilder:
        """Builds batches of rows, or of windows over them."""
        return self.output.builder(plan if self.windows is None else self.windows.opened)

    def _stage_out(self, query: Query | Mixture, chosen: LoaderOptions) -> Query | Mixture:
        """The query with its stages in place of the staged parts."""
        try:
            staging = replace(chosen.staging, show_progress=self._shows)
            return staging.apply(query)
        except DataError as error:
            if not chosen.skips:
                raise
            raise DataError(
                f'{error}; on_error="skip" does not reach staged parts, except files that cannot be understood at all: a '
                "row group, stripe or byte range that is left out would change other rows, of any group. Repair the file, or "
                "leave it out by its path"
            ) from error

    def _adopt(self, plan: _core.Plan) -> None:
        """Go on with a plan, and drop everything made from the one before."""
        self.core = plan
        self._recipe: Recipe | None = None
        self._share_recipe: tuple[list[int], Recipe] | None = None
        self.stage = None
        self._stage_path: str | None = None

    def _take(self, found: FoundPlan) -> None:
        """Deal the splits of a plan that is settled, or go on with the share that was dealt to this rank."""
        query, plan = self.query, found.plan
        assert query is not None
        self._adopt(plan)
        if found.share is None:
            self._dealt = found.epochs or self._deal_out(plan)
        else:
            self._dealt = Epochs.of_share(
                plan, self.deal, self.topology, self._count_rows, found.share, found.known
            )
        self.constant = self._describe(query, plan)
        if self._dealt.is_known:
            # Whether equal steps are possible is known now, and not only when training begins.
            self._dealt.shards(0, 0)
        self._log_files(plan)
        self._warn_of_order()

    def _deal_out(self, plan: _core.Plan) -> Epochs:
        """How all splits of a plan are dealt."""
        if isinstance(self.query, Mixture):
            self.deal = replace(self.deal, mixture=self.query._sources(plan))
        if self.windows is not None:
            deal, counts = self.windows.dealt(self.deal), self.windows.counts
            return Epochs(plan, deal, self.topology, self._count_rows, counts)
        known = None if self.deal.is_global else plan.known_counts()
        return Epochs(plan, self.deal, self.topology, self._count_rows, known)

    def widen(self) -> None:
        """Get all splits of the plan, where this rank has only its share; for what looks at other ranks' splits too."""
        if self._whole is None or not self.epochs.is_part or self.is_in_worker:
            return
        whole, self._whole = self._whole(), None
        self._adopt(whole)
        self._dealt = self._deal_out(whole)

    @property
    def epochs(self) -> Epochs:
        """How the good splits are dealt; which these are is found out by whoever asks first."""
        if not self.quarantine.is_settled:
            if self.is_in_worker:
                raise ConfigError(
                    'with on_error="skip" splits must be verified before worker processes start: call len(dataset) or '
                    "dataset.quarantined in the training process first, or use tensorquery.create_dataloader"
                )
            plan = self.quarantine.settle(
                topology=self.topology,
                process_group=self.group,
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
        assert self.epochs is not None
        return self.quarantine.listed

    def follow_quarantine(self, state: Mapping[str, Any]) -> None:
        """Leave out what a state names, instead of verifying; see `Quarantine.follow`."""
        if self.is_in_worker:
            return
        plan = self.quarantine.follow(state)
        if plan is not None:
            self._take(FoundPlan(plan))
        elif self.quarantine.is_of(state):
            assert self.epochs is not None
        self.quarantine.check(state)

    def follow_pins(self, state: Mapping[str, Any]) -> None:
        """Pin the snapshots and the moment that a state names, where Iceberg tables, or time, have moved on since."""
        query = self.query
        if query is None or self.is_in_worker:
            return
        theirs, ours = state["parts"], self.constant["parts"]
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
        if query is not self.query:
            # Each rank by itself: not all of them need load a state.
            self.open(query)

    def follow_weights(self, weights: Any, state: Mapping[str, Any]) -> None:
        """Take the weights that a run was altered to, as its state has them."""
        query = self.query
        if not isinstance(query, Mixture) or self.is_in_worker:
            return
        if state["parts"].get("mixture") != self.constant["parts"].get("mixture"):
            try:
                self.open(query._with_exactly(weights))
            except ConfigError as error:
                raise CheckpointMismatchError(
                    f"the state is of a run whose mixture was altered, and its weights are not of this mixture: {error}. Give "
                    "the altered query"
                ) from error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the plan if the body of the ``with`` fails."""
        before = {name: self.__dict__[name] for name in _OPENED if name in self.__dict__}
        quarantine, found = self.quarantine, self.quarantine.found
        try:
            yield
        except BaseException:
            for name in _OPENED:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            quarantine.found = found
            raise

    def _log_files(self, plan: _core.Plan) -> None:
        if self.constant["parts"].get("snapshot"):
            files, pruned, _, _ = plan.pruning()
            _LOG.info("%d data files before pruning, %d after", files, files - pruned)

    def _warn_of_order(self) -> None:
        """Say once where the data is sorted and the shuffle window too small for it."""
        assert self.core is not None
        if not self.deal.shuffle and self.deal.buffer is None:
            return
        if self._dealt.is_part:
            # The rank that planned, which has all splits, says it.
            return
        lists = assign(self.core, self.topology.world_size, 0, "lpt", 0)
        quality = self._dealt.quality(0, lists)
        if quality is not None and quality.warning is not None:
            words = quality.warning
            if self.windows is not None:
                words = words.replace('shuffle="global", ', "")
            warnings.warn(words, UserWarning, stacklevel=stack_level_outside())

    def _count_rows(self) -> list[int]:
        plan = self.core
        assert plan is not None
        if self.is_in_worker:
            raise ConfigError(
                "the rows of this query must be counted or staged before worker processes start: ask for dataset.num_rows in "
                "the training process first, or use tensorquery.create_dataloader"
            )
        if self.deal.is_global:
            threads = threads_for(self.topology, 0)
            show = self._shows
            stage = open_stage(plan, threads=threads, show_progress=show)
            self.stage = self._weigh(stage)
            self._stage_path = stage.path
            return [self.stage.num_positions]
        return self.count_splits()

    def _weigh(self, stage: _core.Stage) -> _core.Stage:
        """The stage, from which rows are drawn by weight where that is wanted."""
        weighing = self.deal.weighing
        return stage if weighing is None else weighing.apply(stage)

    def count_splits(self) -> list[int]:
        """The output rows of every split, or its windows."""
        if self.windows is not None:
            return self.windows.counts
        plan, verified = self.core, self.quarantine.rows
        assert plan is not None
        if verified is not None:
            return verified
        counts = split_counts(
            plan,
            topology=self.topology,
            process_group=self.group,
            show_progress=self._show_progress,
            threads=threads_for(self.topology, 0),
        )
        return counts.rows

    def _describe(self, query: Query | Mixture, plan: _core.Plan) -> dict[str, Any]:
        """The part that all states of this run have in common."""
        deal, files = self.deal, plan.files()
        strategy = deal.strategy if isinstance(deal.strategy, str) else type(deal.strategy).__name__
        parts = {
            **query._parts(),
            **self.quarantine.parts(),
            "splits": digest(plan.options()),
            "strategy": strategy,
            # Encoded, so that a default is the same whether it was given or not.
            "tensors": digest(self.output.identity),
            "exclude": digest(deal.exclude),
            "files": file_digests(files),
        }
        if deal.weighing is not None:
            parts["sample"] = deal.weighing.to_list()
        if self.windows is not None:
            parts["windows"] = digest(self.windows.windows.identity)
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": plan.fingerprint,
            "parts": parts,
            "seed": deal.seed,
            **self.quarantine.constant(),
        }

    def file_names(self) -> list[str]:
        """The paths of the query's files; none in a worker, which may have only some of them."""
        if self.core is None or self.planned_in is not None:
            return []
        return [path for path, _ in self.core.files()]

    @property
    def is_at_home(self) -> bool:
        """Whether this is the dataset that was made in this process, and no copy."""
        return self.core is not None and self._process == os.getpid()

    @property
    def is_in_worker(self) -> bool:
        """Whether a worker got this plan; one that a worker has made is like any other."""
        return worker_info() is not None and self._process != os.getpid()

    @property
    def must_move(self) -> bool:
        """Whether this process still has to plan from the recipe: a worker, or a copy."""
        return self._process != os.getpid() and self.planned_in != os.getpid()

    def move(self, workers: int, starts: bool, progress: Progress) -> None:
        """Plan again in this process, once; see `sent` for what it takes."""
        if self.core is not None:
            # Forked: nothing was sent, so the same objects are made here.
            self._dealt, self._recipe = self._for_worker(workers, starts, progress)
        assert self._recipe is not None
        self.core = _core.Plan.from_recipe(*self._recipe)
        if self.windows is not None:
            self.windows.open(self.core)
        self.builder = self._builder_of(self.core)
        self._dealt.moved_to(self.core, self._count_rows)
        if self._stage_path is not None:
            self.stage = self._weigh(_core.Stage.open(self._stage_path, self.core.fingerprint))
        self.planned_in = os.getpid()

    def _for_worker(self, workers: int, starts: bool, progress: Progress) -> tuple[Epochs, Recipe]:
        """Pack the needs of a worker process: how epochs are dealt, and a recipe for its plan.

        The workers of a loader that has begun an iteration get the share of this rank. Others may be given any state,
        and a strategy of the user's may give any split to them, so they get all splits. So they do where windows reach into
        the next split.
        """
        epochs = self.epochs
        if epochs.is_part and self._recipe is not None:
            return Epochs.received(epochs.for_worker()), self._recipe
        assert self.core is not None
        if epochs.is_part:
            sent, ids = epochs.for_share(workers, 0, None)
            self._recipe = self.core.recipe(ids)
            return Epochs.received(sent), self._recipe
        if not starts or not isinstance(self.deal.strategy, str) or self.windows is not None:
            if self._recipe is None:
                self._recipe = self.core.recipe()
            return Epochs.received(epochs.for_worker()), self._recipe
        workers = workers if progress.workers is None else progress.workers
        sent, ids = epochs.for_share(workers, progress.epoch, progress.left)
        if self._share_recipe is None or self._share_recipe[0] != ids:
            self._share_recipe = (ids, self.core.recipe(ids))
        return Epochs.received(sent), self._share_recipe[1]

    def sent(self, workers: int, starts: bool, progress: Progress) -> DatasetPlan:
        """A copy that can be pickled, for a worker process or a copy of the dataset, which plans again by `move`.

        Args:
            workers: Worker processes per rank.
            starts: Whether our own loader starts its workers just now.
            progress: What it begins.
        """
        # A worker must not count, so its counts are taken before it starts.
        self.epochs.prepare(workers)
        dealt, recipe = self._for_worker(workers, starts, progress)
        sent = copy.copy(self)
        sent._dealt, sent._recipe = dealt, recipe
        if dealt.is_part:
            sent.deal = replace(self.deal, mixture=replace(self.deal.mixture, sources=[]))
        sent.core = sent.builder = sent.query = sent.stage = sent.planned_in = None
        sent._staged = sent._whole = sent._share_recipe = None
        sent._process = -1
        # Parts that only the training process needs: groups, user functions, queries.
        sent._options = None
        return sent
