"""What reads a batch of planned packs, or of planned batches by tokens, in the process that delivers it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorquery import _core
from tensorquery.errors import UnsupportedTypeError
from tensorquery.loading.query_rows import QueryRows
from tensorquery.loading.tensors import BatchBuilder, Encoded, Jagged, TensorOutput
from tensorquery.sharding.packing import Array, Pack

__all__ = ["ReadPacks", "ReadRows", "Then", "listed"]


def listed(column: str, values: Any) -> Jagged:
    """A column of lists, of one length or of several."""
    if isinstance(values, Jagged):
        return values
    if isinstance(values, np.ndarray) and values.ndim > 1:
        count, each = values.shape[:2]
        return Jagged(values.reshape(count * each, *values.shape[2:]), np.arange(count + 1) * each)
    raise UnsupportedTypeError(
        f"column {column!r} is no list of numbers, and has no tokens to count; name a list column"
    )


class Then:
    """Reads a batch, then calls the user's transform on it; a class, so that workers can be sent one."""

    def __init__(self, read: Callable[[Any], Any], transform: Callable[[Any], Any] | None) -> None:
        self._read = read
        self._transform = transform

    @property
    def runs_ahead(self) -> bool:
        """Whether a thread may call it ahead of the loop: a transform of the user's is called by the loop's own thread."""
        return self._transform is None

    def __call__(self, batch: Any) -> Any:
        """The batch that the user sees."""
        found = self._read(batch)
        return found if self._transform is None else self._transform(found)


class ReadRows:
    """Gathers the rows of a batch that `plan_batches` planned."""

    def __init__(self, rows: QueryRows, output: TensorOutput) -> None:
        self._rows = rows
        self._output = output
        self._builder: BatchBuilder | None = None

    def __call__(self, batch: Mapping[str, Jagged]) -> Any:
        """The rows of a batch, as the loader's output format has them."""
        store = self._rows._open()[0]
        builder = self._builder
        if builder is None:
            builder = self._builder = self._output.builder(store)
        assert builder.converter is not None
        numbers = batch["rows"].values.astype(np.uint64)
        return builder.build(store.take(numbers, builder.converter))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_builder": None}


class ReadPacks:
    """Gathers the tokens of packs that `plan_packs` planned."""

    def __init__(self, rows: QueryRows, pack: Pack, output_format: str) -> None:
        self._rows = rows
        self._pack = pack
        self._is_torch = output_format == "torch"
        self._kinds: dict[str, Any] | None = None
        """The types of all columns, once they are known, where each is a list of numbers that is packed; else none."""

    def __call__(self, batch: Mapping[str, Jagged]) -> dict[str, Any]:
        """The packs of a batch, with the facts about their documents."""
        pack = self._pack
        numbers, ends = batch["rows"]
        starts, lengths = batch["starts"].values, batch["lengths"].values
        packs = len(ends) - 1

        shape = (packs, pack.length)
        positions, documents = np.empty(shape, np.int64), np.empty(shape, np.int64)
        has_loss = np.empty(shape, np.uint8)
        begins = np.empty(len(lengths), np.int64)
        # Each piece ends a sequence, and so does the padding of each pack.
        bounds = np.empty(1 + len(lengths) + packs, np.int32)
        marked = (positions, documents, has_loss, begins, bounds)
        sequences, longest = _core.mark_pieces(*marked, ends, lengths)
        has_loss = has_loss.view(np.bool_)

        found = self._gathered(shape, numbers, starts, begins, lengths)
        if found is None:
            found = self._taken(shape, numbers, starts, begins, lengths)
        mask = found.pop(pack.loss, None) if pack.loss is not None else None
        if mask is not None:
            has_loss &= mask != 0
        found["position_ids"] = positions
        found["document_ids"] = documents
        found["document_rows"] = numbers.copy()
        found["cu_seqlens"] = bounds[:sequences]
        found["loss_mask"] = has_loss
        if self._is_torch:
            found = {name: _as_torch(values) for name, values in found.items()}
        found["max_seqlen"] = longest
        return found

    def _gathered(
        self, shape: tuple[int, int], numbers: Array, starts: Array, begins: Array, lengths: Array
    ) -> dict[str, Any] | None:
        """The packs of each column, straight from the stored rows; None where a column needs more than a copy."""
        kinds = self._kinds
        if kinds is None:
            none = self._rows.take([])
            kinds = {}
            for name, values in none.items():
                elements = listed(name, values).values if name in self._pack.columns else None
                if elements is None or elements.ndim > 1 or elements.dtype.kind not in "iuf":
                    kinds = {}
                    break
                kinds[name] = elements.dtype
            self._kinds = kinds
        store = self._rows._open()[0]
        rows, found = numbers.astype(np.uint64), {}
        for name, kind in kinds.items():
            made = np.empty(shape, kind)
            fill = np.array(self._fill(name), kind).tobytes()
            own = (rows, starts, begins, lengths)
            if not store.gather_pieces(name, *own, _bytes(made), fill):
                # Other columns would be gathered for nothing in the batches to come.
                self._kinds = {}
                return None
            found[name] = made
        return found or None

    def _taken(
        self, shape: tuple[int, int], numbers: Array, starts: Array, begins: Array, lengths: Array
    ) -> dict[str, Any]:
        """The packs of each packed column, and the values of others by document."""
        # A document whose pieces share the batch is read once.
        distinct, document = np.unique(numbers, return_inverse=True)
        document = document.reshape(-1)
        found: dict[str, Any] = {}
        for name, values in self._rows.take(distinct).items():
            if name not in self._pack.columns:
                found[name] = _chosen(values, document)
                continue
            elements, offsets = listed(name, values)
            made = np.full((*shape, *elements.shape[1:]), self._fill(name), elements.dtype)
            width = elements.dtype.itemsize * math.prod(elements.shape[1:])
            own = offsets[:-1][document] + starts
            _core.copy_pieces(_bytes(elements), _bytes(made), width, own, begins, lengths)
            found[name] = made
        return found

    def _fill(self, name: str) -> float:
        """What goes to where no document is."""
        return False if name == self._pack.loss else self._pack.pad_of(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kinds": None}


def _bytes(values: Array) -> Array:
    """The memory of an array, which is copied where it is not contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _chosen(values: Any, at: Array) -> Any:
    """The values of a column at these places."""
    if isinstance(values, Encoded):
        return Encoded(values.codes[at], values.categories)
    if isinstance(values, Jagged):
        lengths = np.diff(values.offsets)[at]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
        return Jagged(values.values[np.repeat(values.offsets[:-1][at], lengths) + inner], ends)
    if isinstance(values, dict):
        return {name: _chosen(field, at) for name, field in values.items()}
    if isinstance(values, list):
        return [values[place] for place in at.tolist()]
    return values[at]


def _as_torch(values: Any) -> Any:
    """A column for torch."""
    import torch

    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if isinstance(values, Encoded):
        return Encoded(torch.from_numpy(values.codes), values.categories)
    if isinstance(values, Jagged):
        offsets = torch.from_numpy(values.offsets)
        return torch.nested.nested_tensor_from_jagged(torch.from_numpy(values.values), offsets)
    if isinstance(values, dict):
        return {name: _as_torch(field) for name, field in values.items()}
    return values
