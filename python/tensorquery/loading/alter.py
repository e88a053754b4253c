"""Alters what a dataset delivers in the middle of an epoch: what was delivered is taken off the altered result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensorquery import _core
from tensorquery._util.digests import digest
from tensorquery.distributed.broadcast import channel_of
from tensorquery.errors import ConfigError
from tensorquery.loading.alteration import Alteration, Request, Source, SourceRows, sources_of
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.plan import DatasetPlan
from tensorquery.loading.snapshot_pins import agreed
from tensorquery.sharding.altered import Altered
from tensorquery.sharding.checkpoint import check_sum, run_of
from tensorquery.sharding.file_rows import (
    FileRows,
    Mask,
    file_key,
    left_rows,
    part_key,
    physical_rows,
    runs,
)
from tensorquery.sharding.left import Left
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query

__all__ = ["alter"]


def alter(
    state: EpochState, request: Request, current: Mapping[str, Any]
) -> tuple[Alteration, dict[str, Any]]:
    """Alter the query of a dataset; where it fails, nothing has changed.

    Args:
        state: The dataset's state.
        request: What changes.
        current: The state of the loader, or of the dataset, up to now.

    Returns:
        What it did, and the state with which the next iteration begins.

    Raises:
        ConfigError: It does not go with an option, or rows cannot be told apart; names what and why.
        QueryError: The altered query is malformed.
        DataError: A file cannot be read.
    """
    plan = state.plan
    _refuse(plan, state)
    epoch, run, left = current["epoch"], run_of(current), Left.read(current["left"])
    if left is not None or run["step"]:
        plan.widen()
    steps = run["step"] + (0 if left is None else left.steps)
    left_now = plan.epochs.left_after(epoch, left, run) if run["step"] else left
    assert plan.query is not None
    known = state.altered or Altered()
    names = known.names or [source.name for source in sources_of(plan.query)]
    _agree(plan, [epoch, steps, request.agreed(), [] if left_now is None else left_now.rows])
    query, sources, words = request.applied(plan.query, names)
    _check_columns(plan.query, query)
    before = _Result.of(plan, sources_of(plan.query, names))
    with plan.kept():
        plan.open(agreed(query, plan.topology, plan.group), channel_of(plan.topology, plan.group))
        plan.widen()
        assert plan.query is not None
        pinned = [each.query for each in sources_of(plan.query)]
        sources = [source._replace(query=own) for source, own in zip(sources, pinned, strict=True)]
        after = _Result.of(plan, sources)
        only_weights = before.is_same(after)
        if not only_weights:
            _refuse_numbers(plan)
        subtracting = _Subtraction(before, after, known.past_of(epoch))
        found: Left | None = None
        if left_now is None:
            subtracting.subtract([np.ones(rows, dtype=bool) for rows in before.counts])
        else:
            left_of = left_rows(before.core, before.counts, epoch, left_now)
            if only_weights:
                found = replace(left_now, anew=True)
                subtracting.count(left_of, plan.deal.exclude)
            else:
                subtracting.subtract(left_of)
                found = plan.epochs.left_without(epoch, subtracting.delivered, steps)
        # Whether equal steps are possible is known now, and not when the next batch is asked for.
        plan.epochs.shards(state.workers, epoch, found)
        report = Alteration(epoch, steps, words, tuple(subtracting.rows))
        altered = known.after(
            (epoch, steps),
            words,
            [source.name for source in sources],
            _weights(plan.query),
            subtracting.past,
        )
        altered.to_dict(epoch)
    state.altered = altered
    following = Progress(epoch, state.workers, left=found)
    state.progress, state.ended = following, None
    state.changed()
    begin = {
        **plan.constant,
        "epoch": epoch,
        "layout": plan.epochs.layout(state.workers),
        "step": 0,
        "cursors": {},
        "turns": {},
        "left": None if found is None else found.to_dict(),
        "altered": altered.to_dict(epoch),
    }
    return report, {**begin, "check": check_sum(begin)}


def _weights(query: Query | Mixture) -> Any:
    """The weights of a mixture as plain data."""
    if isinstance(query, Query):
        return None
    return query.weights if query.schedule is None else query.schedule.to_dict()


def _refuse(plan: DatasetPlan, state: EpochState) -> None:
    """Refuse options under which rows cannot be taken off."""
    if not plan.is_at_home or plan.query is None:
        raise ConfigError(
            "alter() is for the dataset that was made in this process; a worker, and a copy, have no query"
        )
    deal = plan.deal
    wrong = {
        f"sample_weight={deal.weighing.column!r}"
        if deal.weighing
        else "": "draws rows by weight, of all rows of the query",
        'shuffle="global"'
        if deal.shuffle == "global"
        else "": "permutes all rows of the query at once; use shuffle=True",
        'assignment="dynamic"'
        if deal.assignment == "dynamic"
        else "": "has no step that all ranks share",
        'on_transform_error="skip"'
        if deal.refills
        else "": "fills batches up with rows that no step names",
        'on_error="skip"'
        if plan.skips
        else "": "has found the bad parts of the files that the query had before",
    }
    for option, reason in wrong.items():
        if option:
            raise ConfigError(f"{option} does not go with alter(): it {reason}")
    if plan.topology.world_size > 1 and not state.follows(state.workers):
        raise ConfigError(
            f"alter() needs steps that all {plan.topology.world_size} ranks share, which remainder={deal.remainder!r} "
            f'{"" if state.in_order else "with in_order=False "}does not give; use remainder="even"'
        )


def _refuse_numbers(plan: DatasetPlan) -> None:
    """Refuse options that name splits of the query as it was."""
    if plan.deal.exclude:
        raise ConfigError(
            "exclude= names splits of the query as it was, and the altered one has others; leave these rows out by a filter, or "
            "alter weights alone"
        )
    if not isinstance(plan.deal.strategy, str):
        raise ConfigError(
            "a split_strategy of your own deals the splits of the query as it was, so that alter() takes weights alone; use "
            'split_strategy="lpt"'
        )


def _agree(plan: DatasetPlan, mine: list[Any]) -> None:
    """Check that all ranks of a group alter the same at the same step."""
    channel = channel_of(plan.topology, plan.group)
    if channel is not None:
        epoch, steps, change, left = mine
        record = {
            "epoch": epoch,
            "step": steps,
            "change": change,
            "rows that are left": digest(left),
        }
        channel.agree("an alteration of the query", record, plan.topology.world_size)


def _check_columns(old: Query | Mixture, new: Query | Mixture) -> None:
    """Check that batches go on as they were."""
    before, after = ([column[:2] for column in each._core.columns()] for each in (old, new))
    if before != after:
        then, now = ([name for name, _ in columns] for columns in (before, after))
        raise ConfigError(
            f"the altered query has other columns ({', '.join(now)}) than batches have until now ({', '.join(then)}), or other "
            "types of them; select the same ones"
        )


class _Result(NamedTuple):
    """The rows of a query, by source."""

    core: _core.Plan
    counts: list[int]
    """Output rows of every split."""
    plain: bool
    """Whether metadata say them, so that no row is filtered."""
    sources: list[Source]
    splits: list[list[int]]
    """By source, its splits."""
    places: list[tuple[str, str]]
    """By split, its path and unit."""

    @classmethod
    def of(cls, plan: DatasetPlan, sources: list[Source]) -> _Result:
        core, query = plan.core, plan.query
        assert core is not None
        of_split = (
            query._sources(core).sources if isinstance(query, Mixture) else [0] * core.num_splits
        )
        splits: list[list[int]] = [[] for _ in sources]
        for split, source in enumerate(of_split):
            splits[source].append(split)
        places = [(row[1], row[6]) for row in core.splits(list(range(core.num_splits)))]
        counts = list(plan.epochs.count())
        return cls(core, counts, core.known_counts() is not None, sources, splits, places)

    def files(self, source: int) -> dict[str, str]:
        """Paths and identities of the files of a source's tables."""
        found: dict[str, str] = {}
        for path, identity in self.sources[source].query._core.table_files():
            found[path] = found.get(path, "") + identity
        return found

    def looks(self, source: int) -> Any:
        """What two sources have in common whose output rows are the same, split by split."""
        splits = self.splits[source]
        counts = [self.counts[split] for split in splits]
        own = [self.places[split] for split in splits]
        return self.sources[source].query._parts(), self.files(source), own, counts

    def is_same(self, after: _Result) -> bool:
        """Whether there are the same sources in the same places, so that no more than weights differ."""
        return len(self.sources) == len(after.sources) and all(
            source.origin == place and self.looks(place) == after.looks(place)
            for place, source in enumerate(after.sources)
        )

    def keys(self, source: int) -> list[str]:
        """The names of the files, or parts of files, in which the rows of a source's splits are counted.

        Raises:
            ConfigError: The rows are not those of files.
        """
        files = self.files(source)
        splits = self.splits[source]
        in_parts = {
            self.places[split][0] for split in splits if self.core.numbering(split) == "split"
        }
        found = []
        for split in splits:
            path, unit = self.places[split]
            if path not in files:
                raise ConfigError(
                    f"query {self.sources[source].name!r} has a part that runs once (an aggregate, a window, ORDER BY, …), whose "
                    "rows are not those of a file, so that after a change nothing tells which of them were delivered"
                )
            key = file_key(path, files[path])
            found.append(part_key(key, unit) if path in in_parts else key)
        return found


class _Subtraction:
    """Takes the delivered rows off an altered result, source by source.

    Args:
        before: The result as it was.
        after: The altered result.
        past: By source, the rows of files that earlier alterations of the epoch had taken off.

    Attributes:
        delivered: Rows of the altered result that were delivered: split, first output row, one past the last.
        past: By source, all rows of files that were delivered, where the source or its files changed.
        rows: The rows of each source.
    """

    def __init__(self, before: _Result, after: _Result, past: Mapping[str, FileRows]) -> None:
        self._before, self._after = before, after
        self.past = dict(past)
        self.delivered: list[tuple[int, int, int]] = []
        self.rows: list[SourceRows] = []

    def count(self, left: list[Mask], exclude: Sequence[tuple[int, int, int]]) -> None:
        """Note how many rows were delivered where nothing but weights has changed."""
        gone_of = [~mask for mask in left]
        for split, start, end in exclude:
            gone_of[split][start:end] = False
        for place, source in enumerate(self._after.sources):
            rows = sum(int(left[split].sum()) for split in self._after.splits[place])
            gone = sum(int(gone_of[split].sum()) for split in self._after.splits[place])
            self.rows.append(SourceRows(source.name, gone, rows, 0))

    def subtract(self, left: list[Mask]) -> None:
        """Take off all rows that are not left of the result as it was."""
        before, after = self._before, self._after
        kept = {source.origin for source in after.sources}
        for place in range(len(before.sources)):
            if place not in kept:
                self._remember(place, left)
                # Where it comes back, its other files are no new ones.
                for file in self._known(place):
                    self.past[before.sources[place].name].note(file)
        dropped = self._dropped_files()
        for place, source in enumerate(after.sources):
            if source.origin is None:
                if (rows := self.past.get(source.name)) is not None:
                    self.rows.append(self._by_files(place, rows, rows.known))
                    continue
                self._check_new(place, dropped)
                count = sum(after.counts[split] for split in after.splits[place])
                self.rows.append(SourceRows(source.name, 0, count, count))
            elif before.looks(source.origin) == after.looks(place):
                self.rows.append(self._as_it_was(place, source.origin, left))
            else:
                self._remember(source.origin, left)
                self.rows.append(
                    self._by_files(place, self.past[source.name], self._known(source.origin))
                )

    def _known(self, origin: int) -> set[str]:
        """The files that a source had before."""
        return {file_key(*each) for each in self._before.files(origin).items()}

    def _dropped_files(self) -> dict[str, str]:
        """The files of which sources that are gone have delivered rows, with a source of each."""
        present = {source.name for source in self._after.sources}
        return {
            file: name
            for name, rows in self.past.items()
            if name not in present
            for file in rows.files
        }

    def _check_new(self, place: int, dropped: Mapping[str, str]) -> None:
        """Refuse a new source over files of which one that was dropped has delivered rows."""
        for path, identity in self._after.files(place).items():
            name = dropped.get(file_key(path, identity))
            if name is not None:
                raise ConfigError(
                    f"query {self._after.sources[place].name!r} is new and reads {path}, of which query {name!r}, that was "
                    f"dropped, has delivered rows in this epoch; name it {name!r}, so that these do not come again"
                )

    def _as_it_was(self, place: int, origin: int, left: list[Mask]) -> SourceRows:
        """A source that has not changed: its output rows are the same, split by split."""
        rows = gone = 0
        pairs = zip(self._after.splits[place], self._before.splits[origin], strict=True)
        for split, then in pairs:
            delivered = ~left[then]
            self.delivered += [(split, start, end) for start, end in runs(delivered)]
            gone += int(delivered.sum())
            rows += int(left[then].sum())
        return SourceRows(self._after.sources[place].name, gone, rows, 0)

    def _remember(self, origin: int, left: list[Mask]) -> None:
        """Add the rows of files that a source has delivered to those of before."""
        before, name = self._before, self._before.sources[origin].name
        rows = self.past[name].copy() if name in self.past else FileRows()
        splits = before.splits[origin]
        if not all(left[split].all() for split in splits):
            self._check_once(before, origin)
            for split, key in zip(splits, before.keys(origin), strict=True):
                if not left[split].all():
                    count = before.counts[split]
                    behind = physical_rows(before.core, split, count, plain=before.plain)
                    rows.add(key, behind[~left[split]])
        self.past[name] = rows

    @staticmethod
    def _check_once(result: _Result, source: int) -> None:
        """Refuse a source that reads a file twice: its rows then do not say through which scan they came."""
        scans = result.core.scans()
        of_file: dict[str, int] = {}
        for split in result.splits[source]:
            path = result.places[split][0]
            if of_file.setdefault(path, scans[split]) != scans[split]:
                raise ConfigError(
                    f"query {result.sources[source].name!r} reads {path} twice (UNION ALL), so that the row of the file does "
                    "not say which of the two was delivered; make two queries of it, and mix them"
                )

    def _by_files(self, place: int, rows: FileRows, known: set[str]) -> SourceRows:
        """A source that has changed: rows of files that were delivered do not come again."""
        after, name = self._after, self._after.sources[place].name
        splits = after.splits[place]
        of_path = {path: file_key(path, identity) for path, identity in after.files(place).items()}
        keys = [""] * len(splits)
        if len(rows):
            files = set(of_path.values())
            _check_moved(name, rows.files - files, files - known)
            self._check_once(after, place)
            keys = after.keys(place)
            _check_cut(name, rows, keys)
        left = new = delivered = 0
        for split, key in zip(splits, keys, strict=True):
            rest = count = after.counts[split]
            if key in rows and count:
                behind = physical_rows(after.core, split, count, plain=after.plain)
                gone = rows.has(key, behind)
                self.delivered += [(split, start, end) for start, end in runs(gone)]
                delivered += int(gone.sum())
                rest -= int(gone.sum())
            left += rest
            new += rest if of_path.get(after.places[split][0], "") not in {"", *known} else 0
        return SourceRows(name, delivered, left, new)


def _check_moved(name: str, gone: set[str], new: set[str]) -> None:
    """Refuse where rows of files that are gone may lie in files that are new."""
    if gone and new:
        raise ConfigError(
            f"{len(gone)} files of query {name!r}, of which rows were delivered in this epoch, are gone or were written anew, "
            f"and {len(new)} are new: compaction (OPTIMIZE, rewrite_data_files), UPDATE and MERGE move rows from one file to "
            "another, so that nothing tells which of them were delivered. Alter it between two epochs, or keep the files "
            "until this one ends; files alone that are added, or that are removed, are no matter"
        )


def _check_cut(name: str, rows: FileRows, keys: Sequence[str]) -> None:
    """Refuse where rows are counted from the start of a part of a file, and files are cut into other parts."""
    now: dict[str, set[str]] = {}
    for key in keys:
        now.setdefault(key[:16], set()).add(key)
    for file, parts in now.items():
        if not rows.parts_of(file) <= parts:
            raise ConfigError(
                f"the rows of query {name!r} are counted from the start of a part of a text file, and the altered query cuts the "
                "file into other parts; give split_bytes= so large that a file is one part, or alter it between two epochs"
            )
