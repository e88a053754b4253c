"""Plans of packs and of batches by a budget of tokens: pure functions of the rows' lengths, equal in every process."""

from __future__ import annotations

import heapq
import math
import numbers
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tensorquery._util.options import check_choice, check_positive_int
from tensorquery.errors import ConfigError, DataError

__all__ = ["Pack", "Pieces", "permuted", "plan_batches", "plan_packs"]

Array = np.ndarray[Any, Any]

LONG = ("split", "truncate")

MOST_TOKENS = 2**31 - 1
"""The most tokens of a pack, and of a batch of packs: FlashAttention counts them in int32."""

BUCKET_ROWS = 16_384
"""Rows among which `batch_tokens` with `bucket_by` sorts by length."""

_BIN = 32
_BIN_MASK = (1 << _BIN) - 1


@dataclass(frozen=True)
class Pack:
    """How sequences of list columns are packed into rows of a fixed length: ``create_dataloader(…, pack=Pack(…))``.

    Each `window` documents are packed by themselves, the longest first, each into the fullest pack that has room for it
    (best-fit decreasing, as Ding et al., "Fewer Truncations Improve Language Modeling", ICML 2024, use it). Within a pack,
    and from pack to pack, documents stand in the order of their rows.

    Args:
        columns: List columns of numbers that are packed side by side, of equal lengths in each row, such as tokens and labels.
        length: Tokens of a pack.
        window: Documents that are packed together; more of them fill packs better, and lie further apart in a pack.
        long: What happens to a document of more than `length` tokens. "split": pieces of `length` tokens, and one with the
            rest; "truncate": tokens behind the first `length` are left out, and counted in ``dataset.packing.truncated``.
        pad: The value behind the last token of a pack; or a dict of these by column.
        loss: One of `columns`, whose zeros are positions without a loss, such as those of a prompt. It becomes part of
            ``loss_mask``, and no output of its own.
        multiple: The number of packs is made a multiple of this by dividing packs of several documents, since with
            ``batch_size=1`` all ranks take equal steps only where their number divides that of the packs. None: the largest
            power of two up to 64 that is at most a 64th of the packs, where the documents allow it.

    Raises:
        ConfigError: An option is malformed; names the value and the allowed ones.
    """

    columns: Sequence[str]
    length: int
    window: int = 16_384
    long: str = "split"
    pad: float | Mapping[str, float] = field(default=0, hash=False)
    loss: str | None = None
    multiple: int | None = None

    def __post_init__(self) -> None:
        """Check all of it, and copy what the user may change later."""
        object.__setattr__(self, "columns", _names(self.columns))
        object.__setattr__(self, "length", check_positive_int("length", self.length, MOST_TOKENS))
        object.__setattr__(self, "window", check_positive_int("window", self.window, 2**31))
        check_choice("long", self.long, LONG)
        if self.loss is not None and self.loss not in self.columns:
            raise ConfigError(
                f"loss={self.loss!r} must be one of columns={list(self.columns)}; add it to them"
            )
        if set(self.columns) == {self.loss}:
            raise ConfigError(
                f"columns={list(self.columns)} must name a column of tokens beside loss={self.loss!r}"
            )
        if self.multiple is not None:
            multiple = check_positive_int("multiple", self.multiple, 2**20)
            object.__setattr__(self, "multiple", multiple)
        pad = self.pad
        if isinstance(pad, Mapping):
            unknown = [name for name in pad if name not in self.columns]
            if unknown:
                raise ConfigError(
                    f"pad names {unknown[0]!r}, which is none of columns={list(self.columns)}"
                )
            object.__setattr__(self, "pad", dict(pad))
        for value in pad.values() if isinstance(pad, Mapping) else [pad]:
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise ConfigError(f"pad={pad!r} must be a number, or a dict of numbers by column")

    def pad_of(self, column: str) -> float:
        """Return the value in the padding of a column.

        Args:
            column: One of `columns`.

        Returns:
            The number.
        """
        return self.pad.get(column, 0) if isinstance(self.pad, Mapping) else self.pad

    @property
    def identity(self) -> list[Any]:
        """All of it, as plain data."""
        pads = [[column, repr(self.pad_of(column))] for column in self.columns]
        return [*self.columns, self.length, self.window, self.long, pads, self.loss, self.multiple]


def _names(columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str | bytes | set | frozenset | Mapping) or not isinstance(
        columns, Iterable
    ):
        raise ConfigError(f'columns={columns!r} must be a list of columns, such as ["tokens"]')
    names = tuple(columns)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"columns={list(names)} must name at least one column, by strings")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns={list(names)} names a column twice")
    return names


class Pieces(NamedTuple):
    """Pieces of documents, pack by pack."""

    rows: Array
    """int64: the number of each piece's row."""
    starts: Array
    """int64: the piece's first token in its document."""
    lengths: Array
    """int64: its tokens, at least one."""
    ends: Array
    """int64: pack i has the pieces ``ends[i]`` to ``ends[i + 1]``."""


def permuted(count: int, seed: int) -> Array:
    """A permutation of `count` numbers by a seed: by their SplitMix64 hashes, so that no version of NumPy changes it."""
    with np.errstate(over="ignore"):
        start = _mixed(np.array([seed % 2**64], np.uint64))
        hashes = _mixed(start + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.argsort(hashes, kind="stable")


def _mixed(x: Array) -> Array:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed


def plan_packs(lengths: Array, order: Array, pack: Pack) -> Pieces:
    """Plan the packs of documents.

    Args:
        lengths: Tokens of each row, by its number; rows without tokens are in no pack.
        order: The numbers of the rows, in the order in which they are packed.
        pack: The options.

    Raises:
        ConfigError: The packs have too few documents to be made a multiple of `Pack.multiple`.
    """
    found: list[tuple[Array, Array, Array]] = []
    ends: list[Array] = [np.zeros(1, np.int64)]
    total = 0
    for begin in range(0, len(order), pack.window):
        rows = order[begin : begin + pack.window]
        at, starts, sizes = _pieces(lengths[rows], pack)
        if not len(at):
            continue
        packs = _in_order(_best_fit(sizes, pack.length))
        by_pack = np.argsort(packs, kind="stable")
        found.append((rows[at[by_pack]], starts[by_pack], sizes[by_pack]))
        ends.append(total + np.cumsum(np.bincount(packs)))
        total += len(at)
    if not found:
        empty = np.zeros(0, np.int64)
        return Pieces(empty, empty, empty, ends[0])
    rows, starts, sizes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pieces(rows, starts, sizes, _made_multiple(np.concatenate(ends), pack.multiple))


def _pieces(lengths: Array, pack: Pack) -> tuple[Array, Array, Array]:
    """The pieces of documents: the document's place, the first token and the number of tokens of each."""
    if pack.long == "truncate":
        lengths = np.minimum(lengths, pack.length)
    counts = -(-lengths // pack.length)
    at = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)) * pack.length
    return at, starts, np.minimum(pack.length, lengths[at] - starts)


def _best_fit(sizes: Array, capacity: int) -> Array:
    """The pack of each piece: the longest piece first, each into the fullest pack with room for it."""
    packs = np.empty(len(sizes), np.int64)
    order = np.argsort(-sizes, kind="stable")
    full = int(np.count_nonzero(sizes == capacity))
    packs[order[:full]] = np.arange(full)
    made, placed = full, []
    # The room of each pack that has some, with its number, in ascending order.
    rooms: list[int] = []
    for size in sizes[order[full:]].tolist():
        place = bisect_left(rooms, size << _BIN)
        if place < len(rooms):
            fullest = rooms.pop(place)
            number, room = fullest & _BIN_MASK, (fullest >> _BIN) - size
        else:
            number, room = made, capacity - size
            made += 1
        placed.append(number)
        if room:
            insort(rooms, room << _BIN | number)
    packs[order[full:]] = placed
    return packs


def _in_order(packs: Array) -> Array:
    """The packs, numbered by their first pieces."""
    _, first, inverse = np.unique(packs, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: Array = rank[inverse.reshape(-1)]
    return numbered


def _made_multiple(ends: Array, wanted: int | None) -> Array:
    """The ends of packs, after so many were divided that their number is a multiple."""
    packs = len(ends) - 1
    multiple = wanted or min(64, 1 << max(0, (packs // 64).bit_length() - 1))
    missing = -packs % multiple
    if not missing:
        return ends
    largest = [(-int(size), int(start)) for start, size in zip(ends, np.diff(ends), strict=False)]
    heapq.heapify(largest)
    cuts = []
    for _ in range(missing):
        size, start = largest[0]
        if size > -2:
            if wanted is None:
                return ends
            raise ConfigError(
                f"multiple={multiple}: the {packs} packs have {int(ends[-1])} documents or pieces, too few to make "
                f"{packs + missing} packs of them; use a smaller multiple"
            )
        first = -size // 2
        heapq.heapreplace(largest, (-first, start))
        heapq.heappush(largest, (size + first, start + first))
        cuts.append(start + first)
    return np.sort(np.concatenate([ends, np.array(cuts, np.int64)]))


def plan_batches(
    lengths: Array, order: Array, budget: int, most_rows: int, *, sorts: bool, padded: bool
) -> tuple[Array, Array]:
    """Plan batches of rows that have at most `budget` tokens.

    Args:
        lengths: Tokens of each row, by its number.
        order: The numbers of the rows in their order.
        budget: Tokens of a batch.
        most_rows: The most rows of a batch.
        sorts: Whether rows are sorted by length, `BUCKET_ROWS` at a time, before they are cut into batches.
        padded: Whether rows count with the length of their batch's longest.

    Returns:
        The numbers of the rows, batch by batch, and where batches begin, with the end of the last.

    Raises:
        DataError: A row has more tokens than the budget; names it.
    """
    longest = int(np.argmax(lengths)) if len(lengths) else 0
    if len(lengths) and lengths[longest] > budget:
        raise DataError(
            f"row {longest} has {lengths[longest]} tokens, more than batch_tokens={budget}; raise batch_tokens, or leave such "
            "rows out by filters="
        )
    window = BUCKET_ROWS if sorts else max(1, len(order))
    batches: list[Array] = []
    for begin in range(0, len(order), window):
        rows = order[begin : begin + window]
        places = np.argsort(lengths[rows], kind="stable") if sorts else np.arange(len(rows))
        cuts = _cuts(lengths[rows[places]].tolist(), budget, most_rows, padded=padded)
        # Within a batch, and from batch to batch, rows keep their order.
        found = sorted((np.sort(part) for part in np.split(places, cuts)), key=lambda part: part[0])
        batches.extend(rows[part] for part in found)
    if not batches:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    ends = np.cumsum([0, *map(len, batches)])
    return np.concatenate(batches), _made_multiple(ends, None)


def _cuts(lengths: list[int], budget: int, most_rows: int, *, padded: bool) -> list[int]:
    """Where batches begin, but for the first one."""
    cuts, rows, total, longest = [], 0, 0, 0
    for place, length in enumerate(lengths):
        rows, total, longest = rows + 1, total + length, max(longest, length)
        if rows > most_rows or (rows * longest if padded else total) > budget:
            cuts.append(place)
            rows, total, longest = 1, length, length
    return cuts


def fill_of(tokens: int, packs: int, length: int) -> float:
    """The part of the packs' positions that hold tokens."""
    return tokens / (packs * length) if packs else math.nan
