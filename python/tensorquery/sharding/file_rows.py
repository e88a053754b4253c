"""Rows by file: which physical rows of which files were delivered, whatever query they came through."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.digests import digest
from tensorquery.distributed.topology import Topology
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.sharding.left import Left

__all__ = ["FileRows", "file_key", "left_rows", "part_key", "physical_rows", "runs"]

_CHUNK = 1 << 16
"""Rows whose places are looked up at a time."""
_LETTERS = 16
_MOST_ROWS = 2**36
_MOST_TEXT = 16 << 20

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def file_key(path: str, identity: str) -> str:
    """The name of a file in a state, which shows no path."""
    return digest([path, identity])[:_LETTERS]


def part_key(file: str, part: str) -> str:
    """The name of a part of a file, from whose start its rows are counted."""
    return f"{file}:{digest(part)[:_LETTERS]}"


class FileRows:
    """Physical rows by file.

    Args:
        rows: By file, True for each row that is in it.
    """

    def __init__(self, rows: Mapping[str, Mask] | None = None) -> None:
        self._rows: dict[str, Mask] = dict(rows or {})
        self._packed: dict[str, Any] | None = None

    def add(self, key: str, rows: Rows) -> None:
        """Add rows of a file."""
        if not len(rows):
            return
        old = self._rows.get(key, np.zeros(0, dtype=bool))
        grown = np.zeros(max(len(old), int(rows.max()) + 1), dtype=bool)
        grown[: len(old)] = old
        grown[rows] = True
        self._rows[key], self._packed = grown, None

    def note(self, file: str) -> None:
        """Take note of a file of which no row is among them."""
        if file not in self.known:
            self._rows[file], self._packed = np.zeros(0, dtype=bool), None

    def has(self, key: str, rows: Rows) -> Mask:
        """For each of these rows of a file whether it is among them."""
        known = self._rows.get(key, np.zeros(0, dtype=bool))
        inside = rows < len(known)
        found = np.zeros(len(rows), dtype=bool)
        found[inside] = known[rows[inside]]
        return found

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return sum(int(mask.sum()) for mask in self._rows.values())

    @property
    def files(self) -> set[str]:
        """The names of the files that have rows, without those of parts."""
        return {key[:_LETTERS] for key, mask in self._rows.items() if len(mask)}

    @property
    def known(self) -> set[str]:
        """The names of all files, also of those that were only noted."""
        return {key[:_LETTERS] for key in self._rows}

    def parts_of(self, file: str) -> set[str]:
        """The names of its parts, or its own, that have rows."""
        return {key for key, mask in self._rows.items() if key[:_LETTERS] == file and len(mask)}

    def copy(self) -> FileRows:
        """A copy that can be added to."""
        return FileRows(self._rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: by file one range, or where there are several one bit for each row, compressed.

        Raises:
            ConfigError: It would be longer than a state can be.
        """
        if self._packed is not None:
            return dict(self._packed)
        found: dict[str, Any] = {}
        letters = 0
        for key, mask in self._rows.items():
            [*ranges] = runs(mask)
            if len(ranges) <= 1:
                found[key] = list(ranges[0]) if ranges else [0, 0]
                continue
            packed = base64.b85encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()
            found[key] = [len(mask), packed]
            letters += len(packed)
        if letters > _MOST_TEXT:
            raise ConfigError(
                f"the rows delivered in this epoch lie so scattered that a state would need {letters:,} letters to say them, and "
                f"{_MOST_TEXT:,} are the most; alter the query between two epochs"
            )
        self._packed = found
        return dict(found)

    @classmethod
    def read(cls, found: Any) -> FileRows:
        """Read what `to_dict` returned.

        Raises:
            CheckpointMismatchError: It is damaged.
        """
        if not isinstance(found, Mapping):
            raise _damaged()
        return cls({key: _mask(value) for key, value in found.items()})


def _mask(value: Any) -> Mask:
    if not isinstance(value, Sequence) or len(value) != 2 or type(value[0]) is not int:
        raise _damaged()
    first, second = value
    if type(second) is int:
        if not 0 <= first <= second <= _MOST_ROWS:
            raise _damaged()
        mask = np.zeros(second, dtype=bool)
        mask[first:] = True
        return mask
    if not isinstance(second, str) or len(second) > _MOST_TEXT or not 0 <= first <= _MOST_ROWS:
        raise _damaged()
    unpacking = zlib.decompressobj()
    try:
        bits = unpacking.decompress(base64.b85decode(second), -(-first // 8) or 1)
    except (zlib.error, ValueError) as error:
        raise _damaged() from error
    if not unpacking.eof or len(bits) != -(-first // 8):
        raise _damaged()
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=first).astype(bool)


def _damaged() -> CheckpointMismatchError:
    return CheckpointMismatchError(
        "the state is damaged: its 'altered' does not say which rows of files were delivered; load an earlier state"
    )


def runs(mask: Mask) -> Iterator[tuple[int, int]]:
    """The runs of True: first, one past the last.

    >>> list(runs(np.array([True, False, True, True])))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def left_rows(plan: _core.Plan, counts: Sequence[int], epoch: int, left: Left) -> list[Mask]:
    """The rows that are left of an epoch: by split, True for each output row that is.

    Args:
        plan: The plan, with all its splits.
        counts: Output rows of every split.
        epoch: The epoch.
        left: What is left of it.
    """
    plain = Deal(_CHUNK, 0, False, None, "even", None, "lpt")
    shards = Epochs(plan, plain, Topology(0, 1), None, list(counts)).all_shards(0, epoch, left)
    found = [np.zeros(rows, dtype=bool) for rows in counts]
    stream = plan.positions(shards, 0, 0, shards.cursor_at(0, 0, 0), list(counts))
    try:
        while (batch := stream.next()) is not None:
            columns = import_pyarrow().record_batch(batch)
            splits, rows = (
                column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns
            )
            order = np.argsort(splits, kind="stable")
            splits, rows = splits[order], rows[order]
            edges = [0, *(np.flatnonzero(np.diff(splits)) + 1).tolist(), len(splits)]
            for start, end in itertools.pairwise(edges):
                if start < end:
                    found[int(splits[start])][rows[start:end]] = True
    finally:
        stream.close()
    return found


def physical_rows(plan: _core.Plan, split: int, count: int, *, plain: bool) -> Rows:
    """The physical row behind each output row of a split.

    Args:
        plan: The plan.
        split: The split.
        count: Its output rows.
        plain: Whether metadata say the output rows of all splits, so that none is filtered.

    Raises:
        ConfigError: Several output rows come from one row of the file.
        DataError: The file cannot be read.
    """
    span = plan.row_range(split) if plain else None
    if span is not None and span[1] - span[0] == count:
        return np.arange(*span, dtype=np.int64)
    [found] = plan.physical_rows([(split, range(count))])
    rows = np.array(found, dtype=np.int64)
    if len(np.unique(rows)) != len(rows):
        raise ConfigError(
            f"several rows of the result come from one row of {plan.splits([split])[0][1]} (a join, or unnest), so that the "
            "row of the file does not say which of them were delivered"
        )
    return rows
