"""Takes delivered rows off an altered result, by file and row, or by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery.distributed.topology import Topology, threads_for
from tensorquery.errors import ConfigError, DataError
from tensorquery.loading.alteration import Source, SourceRows
from tensorquery.loading.plan import DatasetPlan
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.file_rows import (
    FileRows,
    Mask,
    file_key,
    part_key,
    physical_rows,
    runs,
)
from tensorquery.sql.mixture import Mixture

__all__ = ["Result", "Subtraction"]

_LOST = "lost"
"""Stands among files for rows of which nothing is known any more but that they were delivered."""

_READ_ROWS = 1 << 16
"""Rows that are read together."""


class Result(NamedTuple):
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
    def of(cls, plan: DatasetPlan, sources: list[Source]) -> Result:
        """The result of a plan with all its splits; rows are counted where nobody knows them."""
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

    def is_same(self, after: Result) -> bool:
        """Whether there are the same sources in the same places, so that no more than weights differ."""
        return len(self.sources) == len(after.sources) and all(
            source.origin == place and self.looks(place) == after.looks(place)
            for place, source in enumerate(after.sources)
        )

    def joins(self, source: int) -> bool:
        """Whether a source has a join, or a subquery that is one."""
        if "Join" not in self.core.shape():
            return False
        return "Join" in self.sources[source].query._core.plan(*self.core.options()).shape()

    def keys_of(
        self, source: int, key: list[str], wanted: Mapping[int, Mask]
    ) -> Iterator[tuple[Any, ...]]:
        """The values of key columns of output rows of a source, in their order; all rows of the result are read.

        Args:
            source: The source.
            key: The columns.
            wanted: By split of the source, True for each row that is wanted.

        Raises:
            DataError: A key is null or NaN, a list, or there twice; names it.
        """
        name = self.sources[source].name
        seen: set[tuple[Any, ...]] = set()
        mask = np.concatenate(
            [
                wanted.get(split, np.zeros(rows, dtype=bool))
                for split, rows in enumerate(self.counts)
            ]
            or [np.zeros(0, dtype=bool)]
        )
        start = 0
        for batch in self._batches():
            chosen = mask[start : start + batch.num_rows]
            start += batch.num_rows
            rows = batch.filter(import_pyarrow().array(chosen)) if len(chosen) else batch
            columns = (rows.column(rows.schema.get_field_index(each)).to_pylist() for each in key)
            for values in zip(*columns, strict=True):
                if how := _no_key(values, seen):
                    raise DataError(
                        f"key={key} does not tell the rows of query {name!r} apart: {values!r} {how}; give columns of which "
                        "each row has other values"
                    )
                seen.add(values)
                yield values

    def _batches(self) -> Iterator[Any]:
        """All rows of the result in their order, as batches of Arrow with all columns."""
        alone = Topology(0, 1)
        plain = Deal(_READ_ROWS, 0, False, None, "uneven", None, "lpt")
        epochs = Epochs(self.core, plain, alone, lambda: self.counts, self.core.known_counts())
        stream = self.core.stream(epochs.shards(0, 0), 0, 0, [], threads_for(alone, 0), None)
        try:
            while (found := stream.next()) is not None:
                yield import_pyarrow().record_batch(found)
        finally:
            stream.close()

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


class Subtraction:
    """Takes the delivered rows off an altered result, source by source.

    Args:
        before: The result as it was.
        after: The altered result.
        past: By source, the rows of files that earlier alterations of the epoch had taken off.
        key: The columns by whose values rows of a source that changes are told apart; none: by file and row.

    Attributes:
        delivered: Rows of the altered result that were delivered: split, first output row, one past the last.
        past: By source, all rows of files that were delivered, where the source or its files changed.
        rows: The rows of each source.
    """

    def __init__(
        self, before: Result, after: Result, past: Mapping[str, FileRows], key: Sequence[str]
    ) -> None:
        self._before, self._after, self._key = before, after, list(key)
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
                self._drop(place, left)
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
            elif self._key:
                self.rows.append(self._by_key(place, source.origin, left))
            else:
                self._check_joins(place, source.origin, left)
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
            for file in (rows.known if _LOST in rows else rows.files)
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

    def _drop(self, origin: int, left: list[Mask]) -> None:
        """A source that is gone: its rows are remembered, since it may come back."""
        name = self._before.sources[origin].name
        try:
            self._remember(origin, left)
        except ConfigError:
            # It may not come back in this epoch, and no other query over its files may come.
            self.past[name] = FileRows()
            self.past[name].add(_LOST, np.zeros(1, dtype=np.int64))
        # Where it comes back, its other files are no new ones.
        for file in self._known(origin):
            self.past[name].note(file)

    def _check_joins(self, place: int, origin: int, left: list[Mask]) -> None:
        """Refuse a source with a join: which of its tables is read row by row may have changed."""
        if all(left[split].all() for split in self._before.splits[origin]):
            return
        if self._before.joins(origin) or self._after.joins(place):
            raise ConfigError(
                f"query {self._after.sources[place].name!r} changes and has a join (or a subquery), of which one table or the other "
                "may be read row by row, so that nothing tells which rows of it were delivered; give key=, the columns that "
                "tell rows of the result apart"
            )

    def _by_key(self, place: int, origin: int, left: list[Mask]) -> SourceRows:
        """A source that has changed: rows with a key that was delivered do not come again."""
        before, after, name = self._before, self._after, self._after.sources[place].name
        if len(self.past.get(name, ())):
            raise ConfigError(
                f"query {name!r} was altered before in this epoch, and of the rows delivered until then nobody knows the key; "
                "alter it by key= between two epochs, or once in an epoch"
            )
        gone = {split: ~left[split] for split in before.splits[origin]}
        delivered = set(before.keys_of(origin, self._key, gone))
        every = {split: np.ones(after.counts[split], dtype=bool) for split in after.splits[place]}
        found = list(after.keys_of(place, self._key, every))
        known = np.fromiter((key in delivered for key in found), bool, len(found))
        start = 0
        for split in after.splits[place]:
            end = start + after.counts[split]
            self.delivered += [(split, *run) for run in runs(known[start:end])]
            start = end
        taken = int(known.sum())
        self.past[name] = FileRows()
        if taken < len(delivered):
            # They might come back.
            self.past[name].add(_LOST, np.zeros(1, dtype=np.int64))
        return SourceRows(name, taken, len(found) - taken, 0)

    def _remember(self, origin: int, left: list[Mask]) -> None:
        """Add the rows of files that a source has delivered to those of before."""
        before, name = self._before, self._before.sources[origin].name
        rows = self.past[name].copy() if name in self.past else FileRows()
        if _LOST in rows:
            raise _lost(name)
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
    def _check_once(result: Result, source: int) -> None:
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
            if _LOST in rows:
                raise _lost(name)
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
            f"files of query {name!r} with delivered rows are gone or were written anew ({len(gone)}), and others are new "
            f"({len(new)}): compaction (OPTIMIZE, rewrite_data_files), UPDATE and MERGE move rows from one file to another, so that "
            "nothing tells which of them were delivered. Give key=, the columns that tell rows apart, or alter it between two "
            "epochs; files alone that are added, or that are removed, are no matter"
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


def _no_key(values: tuple[Any, ...], seen: set[tuple[Any, ...]]) -> str:
    """Why values do not tell a row apart, in words; empty where they do."""
    if any(value is None or value != value for value in values):
        return "has a null, or NaN"
    if any(isinstance(value, list | dict) for value in values):
        return "has a list or a struct"
    return "is there twice" if values in seen else ""


def _lost(name: str) -> ConfigError:
    return ConfigError(
        f"of query {name!r} rows were delivered in this epoch of which nothing is known any more (it was altered by key=, or "
        "dropped, and had rows that are not those of a file); alter it between two epochs"
    )
