"""How an epoch is divided: from options to the shards of every rank and worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorquery import _core
from tensorquery._util.digests import digest
from tensorquery.distributed.topology import Topology
from tensorquery.errors import ConfigError
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.exclusions import check_excluded
from tensorquery.sharding.left import Left, packed
from tensorquery.sharding.shards import assign
from tensorquery.sharding.shuffle_quality import ShuffleQuality, predict

__all__ = [
    "Epochs",
    "SentEpochs",
]


_RUN_ROWS = 1 << 14
_RESUMED = "resumed "


@dataclass(frozen=True)
class SentEpochs:
    """All that a worker process needs to go on with `Epochs`, but for the plan.

    Attributes:
        deal: The options.
        topology: The ranks.
        counts: The output rows of every split, where known.
        exact_from_start: Whether they were known without counting.
        was_known: Whether they were known where a share was dealt.
        mixing: How shards mix.
        layouts: By number of workers.
        shares: This rank's shares, packed, by what they follow from.
        is_part: Whether there is no more than these shares.
    """

    deal: Deal
    topology: Topology
    counts: list[int] | None
    exact_from_start: bool
    was_known: bool
    mixing: dict[str, Any]
    layouts: dict[int, dict[str, Any]]
    shares: dict[str, bytes]
    is_part: bool


class Epochs:
    """Deals the rows of a plan, epoch by epoch; the same in every process.

    Args:
        plan: The plan, with all its splits; None where `moved_to` gives it one.
        deal: The options.
        topology: The ranks.
        count: Counts the output rows of every split.
        known: These rows, where they are known without counting.
    """

    def __init__(
        self,
        plan: _core.Plan | None,
        deal: Deal,
        topology: Topology,
        count: Callable[[], list[int]] | None,
        known: list[int] | None,
    ) -> None:
        if deal.assignment == "dynamic" and topology.world_size > 1 and deal.remainder != "uneven":
            raise ConfigError(
                f'assignment="dynamic" with world_size={topology.world_size} needs remainder="uneven", got '
                f"{deal.remainder!r}: each worker ends with a short batch wherever its last split ends, so ranks "
                "cannot promise equal steps"
            )
        self._own_plan = plan
        self._deal = deal
        self._topology = topology
        self._count = count
        self.counts = known
        self._exact_from_start = known is not None
        if plan is not None:
            check_excluded(deal.exclude, plan.num_splits, known)
        self._mixing: dict[str, Any] | None = None
        self._layouts: dict[int, dict[str, Any]] = {}
        self._dealt: dict[tuple[str, bool, str, Left | None], _core.Shards] = {}
        # By the values that determine them; packed in a copy that was sent.
        self._shares: dict[str, _core.RankShare | bytes] = {}
        self._was_known = False
        self.is_part = False
        """Whether there is no more here than the share of this rank."""

    @classmethod
    def of_share(
        cls,
        plan: _core.Plan,
        deal: Deal,
        topology: Topology,
        count: Callable[[], list[int]],
        share: bytes,
        known: bool,
    ) -> Epochs:
        """Of a rank that was dealt its share by another.

        Args:
            plan: The splits of the share.
            deal: The options.
            topology: The ranks.
            count: Counts the output rows of every split, where that is asked for.
            share: The rank's part of `all_shares`.
            known: Whether output rows are known without counting.
        """
        epochs = cls(plan, deal, topology, count, None)
        epochs._exact_from_start = epochs._was_known = known
        epochs.is_part = True
        epochs._shares = {epochs._share_key(0, 0, None): share}
        return epochs

    def all_shares(self) -> list[_core.RankShare] | None:
        """The shares of all ranks; None if dealing needs facts that are not known yet, or each rank needs all splits."""
        if not isinstance(self._deal.strategy, str) or self._deal.is_global:
            return None
        if self.counts is None and self._is_counted(0):
            return None
        request, sources = self._request(self.layout(0), 0, None), self._deal.mixture.sources
        return _core.RankShare.deal(self._plan, request, self.counts, sources)

    @property
    def is_known(self) -> bool:
        """Whether output rows are known without counting."""
        return self._exact_from_start

    def layout(self, workers: int) -> dict[str, Any]:
        """The layout for `workers` worker processes per rank, as states and the core know it."""
        if workers not in self._layouts:
            self._layouts[workers] = self._lay_out(workers)
        return self._layouts[workers]

    def _lay_out(self, workers: int) -> dict[str, Any]:
        deal = self._deal
        deal.check_workers(workers)
        layout = {
            "world_size": self._topology.world_size,
            "num_workers": workers,
            "dynamic": self.is_dynamic(workers),
            "batch_size": deal.batch_size,
            "remainder": deal.remainder,
            "counted": self._is_counted(workers),
            "partitions": deal.partitions,
            "strategy": deal.strategy if isinstance(deal.strategy, str) else None,
            "shuffle": deal.shuffle is True,
            "permuted": _RUN_ROWS if deal.is_global else None,
            "mixing": self._mix_of_takers(workers) if self.is_dynamic(workers) else self._mix(),
        }
        # States of other runs stay as they are.
        return {**layout, "refills": True} if deal.refills else layout

    def is_dynamic(self, workers: int) -> bool:
        """Whether `workers` worker processes take splits as they come.

        The training process alone has nobody to share with.
        """
        return self._deal.assignment == "dynamic" and workers > 0

    def shards_per_rank(self, workers: int) -> int:
        """Shards to which the rows of each rank are dealt."""
        return 1 if self.is_dynamic(workers) else max(1, workers)

    def _is_counted(self, workers: int) -> bool:
        """Whether shares go by exact rows. Never a question of whether somebody has counted already."""
        deal = self._deal
        if deal.remainder == "uneven" or self.is_dynamic(workers):
            return False
        if (
            self._exact_from_start
            or deal.is_global
            or deal.partitions is not None
            or deal.mixture.weights
            or deal.refills
        ):
            return True
        if self._topology.world_size > 1:
            return True
        return deal.remainder in ("drop", "pad") and workers > 1

    def _mix(self) -> dict[str, Any]:
        if self._mixing is None:
            deal = self._deal
            mixing = self._plan.mixing(deal.shuffle is True, deal.buffer, deal.partitions)
            self._mixing = _as_request(mixing)
        return self._mixing

    def _mix_of_takers(self, workers: int) -> dict[str, Any]:
        """How workers mix that take splits as they come."""
        mixing, deal = self._mix(), self._deal
        chosen = (mixing["width"], mixing["chunk"], mixing["window"])
        takers = workers * self._topology.world_size
        rows = self._plan.known_rows() if deal.buffer is None else None
        return _as_request(self._plan.mixing_of_takers(chosen, takers, rows, deal.batch_size))

    def quality(self, workers: int, lists: Sequence[Sequence[int]]) -> ShuffleQuality | None:
        """A prediction of shuffling; None where nothing is shuffled.

        Args:
            workers: Worker processes per rank.
            lists: Splits by shard, ``rank * workers + worker``.
        """
        deal = self._deal
        if not deal.shuffle and deal.buffer is None:
            return None
        lanes = 1
        if deal.partitions is not None:
            lanes = max(1, deal.partitions // self._topology.world_size)
            lists = self._plan.assign(deal.partitions, 0, "lpt")
        return predict(
            self._plan,
            self.counts if not deal.is_global else None,
            shuffle=deal.shuffle,
            mixing=self._mix(),
            lists=lists,
            lanes=lanes,
            workers=max(1, workers),
        )

    def count(self) -> list[int]:
        """The output rows of every split; counted once where nobody knows them.

        Raises:
            ConfigError: A range that is left out is not in its split; names it.
        """
        if self.counts is None:
            assert self._count is not None, "a copy does not count before it is moved"
            counts = self._count()
            check_excluded(self._deal.exclude, len(counts), counts)
            self.counts = counts
        return self.counts

    def prepare(self, workers: int, run: Mapping[str, Any] | None = None) -> None:
        """Count what dealing needs, before worker processes start; with `run`, what that run needed."""
        if self.is_part:
            # It was dealt its share by one who had counted.
            return
        # A permutation of all rows is read from the stage that counting makes, equal steps or not.
        if self.counts is None and (
            self._deal.is_global
            or self._is_counted(workers)
            or (run is not None and run["layout"]["counted"])
        ):
            self.count()

    def shards(self, workers: int, epoch: int, left: Left | None = None) -> _core.Shards:
        """The shards of this rank.

        Args:
            workers: Worker processes per rank.
            epoch: The epoch.
            left: What is left of it, where it was begun before with another deal.

        Raises:
            ConfigError: Equal steps are impossible; names the numbers of rows, ranks and rows per batch.
            CheckpointMismatchError: What is left is not of this plan.
        """
        if not isinstance(self._deal.strategy, str):
            # It deals each epoch anew, and looks at all splits.
            return self.all_shards(workers, epoch, left)
        self.prepare(workers)
        request = self._request(self.layout(workers), epoch, left)
        key = ("own", self._known, request, left)
        if key not in self._dealt:
            shards = self._share(workers, epoch, left).shards(self._plan, request)
            # One epoch at a time is read; a state may need the one before.
            self._dealt = dict([*self._dealt.items(), (key, shards)][-2:])
        return self._dealt[key]

    def all_shards(self, workers: int, epoch: int, left: Left | None = None) -> _core.Shards:
        """The shards of all ranks; see `shards`.

        Raises:
            ConfigError: This process has only its share of the plan.
        """
        self.prepare(workers)
        layout = self.layout(workers)
        request = self._request(layout, epoch, left)
        key = ("all", self._known, request, left)
        if key not in self._dealt:
            lists = None if left is not None else self._lists(layout, epoch)
            sources = self._deal.mixture.sources
            shards = _core.Shards.deal(
                self._plan, request, self.counts, sources, lists, packed(left)
            )
            self._dealt = dict([*self._dealt.items(), (key, shards)][-2:])
        return self._dealt[key]

    def left_after(self, epoch: int, left: Left | None, run: Mapping[str, Any]) -> Left:
        """What is left of an epoch after a run of it.

        Args:
            epoch: The epoch.
            left: What was left when the run began; None where it began the epoch.
            run: Its layout, step and cursors.

        Raises:
            CheckpointMismatchError: The run's cursors do not fit its layout, or what was left is not of this plan.
        """
        layout = run["layout"]
        self.prepare(layout["num_workers"], run)
        found = _core.Shards.left_after(
            self._plan,
            self._request(layout, epoch, left),
            self.counts,
            self._deal.mixture.sources,
            json.dumps(run),
            None if left is not None else self._lists(layout, epoch),
            packed(left),
        )
        return Left.of(found, after=(left, run))

    def left_without(
        self, epoch: int, delivered: Sequence[tuple[int, int, int]], steps: int
    ) -> Left:
        """What is left of an epoch of which some rows were delivered, by a plan before this one.

        Args:
            epoch: The epoch.
            delivered: These rows: split, first output row, one past the last.
            steps: Batches of each rank before.
        """
        request = json.loads(self._request(self.layout(0), epoch, None))
        request["exclude"] = [*request["exclude"], *delivered]
        found = _core.Shards.left_without(self._plan, json.dumps(request), self.count(), 1)
        run = {"layout": self.layout(0), "step": steps, "cursors": {}}
        return replace(Left.of(found, after=(None, run)), anew=True)

    def _request(self, layout: Mapping[str, Any], epoch: int, left: Left | None) -> str:
        deal = self._deal
        request = {
            "layout": layout,
            "seed": deal.seed,
            "epoch": epoch,
            "exclude": deal.exclude,
            "source_weights": deal.mixture.weights,
            "stop_first": deal.mixture.stop_first,
        }
        if deal.mixture.ramp is not None:
            request["ramp"] = deal.mixture.ramp
        if left is not None:
            request |= {"steps": left.steps, "anew": left.anew}
        return json.dumps(request)

    def _share(self, workers: int, epoch: int, left: Left | None) -> _core.RankShare:
        """The share of this rank in every epoch, or in the rest of one that was begun before."""
        self.prepare(workers)
        key = self._share_key(workers, epoch, left)
        share = self._shares.get(key)
        if share is None:
            if self.is_part:
                raise ConfigError(
                    "this process has only its share of the plan, and the state to go on from needs all of it; load "
                    "it into the loader in the training process"
                )
            # Two are kept: one share of whole epochs, and one of an epoch that was resumed.
            [share] = _core.RankShare.deal(
                self._plan,
                self._request(self.layout(workers), epoch, left),
                self.counts,
                self._deal.mixture.sources,
                packed(left),
                self._topology.rank,
            )
            self._shares = {
                kept: old
                for kept, old in self._shares.items()
                if kept.startswith(_RESUMED) != (left is not None)
            }
        elif isinstance(share, bytes):
            share = _core.RankShare.decode(share)
        self._shares[key] = share
        return share

    def _share_key(self, workers: int, epoch: int, left: Left | None) -> str:
        """A digest of all that a share follows from; the same for any number of workers."""
        layout = {
            name: value
            for name, value in self.layout(workers).items()
            if name not in ("num_workers", "mixing", "shuffle", "dynamic")
        }
        if left is None:
            return digest([layout, self._known])
        return _RESUMED + digest([layout, self._known, left.rows, left.steps, left.anew])

    @property
    def _known(self) -> bool:
        """Whether rows are counted, here or where this share was dealt."""
        return self.counts is not None or self._was_known

    @property
    def _plan(self) -> _core.Plan:
        assert self._own_plan is not None, "a copy has no plan before it is moved"
        return self._own_plan

    def moved_to(self, plan: _core.Plan, count: Callable[[], list[int]]) -> None:
        """Go on in another process, with its own plan."""
        self._own_plan, self._count = plan, count
        self._dealt = {}

    @classmethod
    def received(cls, sent: SentEpochs) -> Epochs:
        """Unpack a sent copy in a worker process, where `moved_to` gives it a plan."""
        epochs = cls(None, sent.deal, sent.topology, None, sent.counts)
        epochs._exact_from_start = sent.exact_from_start
        epochs._was_known = sent.was_known
        epochs._mixing = sent.mixing
        epochs._layouts = dict(sent.layouts)
        epochs._shares = dict(sent.shares)
        epochs.is_part = sent.is_part
        return epochs

    def for_worker(self) -> SentEpochs:
        """All there is, for a worker process."""
        return self._sent({} if not self.is_part else self._shares)

    def _sent(self, shares: Mapping[str, _core.RankShare | bytes]) -> SentEpochs:
        packed = {
            key: share if isinstance(share, bytes) else share.encode()
            for key, share in shares.items()
        }
        return SentEpochs(
            deal=self._deal,
            topology=self._topology,
            counts=self.counts,
            exact_from_start=self._exact_from_start,
            was_known=self._was_known,
            mixing=self._mix(),
            layouts=dict(self._layouts),
            shares=packed,
            is_part=self.is_part,
        )

    def for_share(
        self, workers: int, epoch: int, left: Left | None
    ) -> tuple[SentEpochs, list[int]]:
        """No more than this rank's share, for a worker process.

        Args:
            workers: Worker processes per rank.
            epoch: The epoch that is delivered next.
            left: What is left of that epoch, where it was begun before.

        Returns:
            The bytes to send, and the ids of the splits that it reads, ascending.
        """
        wanted = [None] if left is None else [None, left]
        shares = {
            self._share_key(workers, epoch, part): self._share(workers, epoch, part)
            for part in wanted
        }
        mixture = replace(self._deal.mixture, sources=[])
        sent = replace(
            self._sent(shares),
            deal=replace(self._deal, mixture=mixture),
            was_known=self._known,
            counts=None,
            is_part=True,
        )
        if self._deal.is_global:
            return sent, []
        return sent, sorted({id for share in shares.values() for id in share.split_ids()})

    def _lists(self, layout: Mapping[str, Any], epoch: int) -> list[list[int]] | None:
        strategy = self._deal.strategy
        if isinstance(strategy, str):
            return None
        return assign(self._plan, layout["world_size"], layout["num_workers"], strategy, epoch)


def _as_request(mixing: tuple[int, int, int | None]) -> dict[str, Any]:
    width, chunk, window = mixing
    return {"width": width, "chunk": chunk, "window": window}
