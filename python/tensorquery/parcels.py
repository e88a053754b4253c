"""Batches on their way from a worker process to its loader: many of them in one block of shared memory.

torch's queue sends every tensor as a file of its own: a descriptor that crosses a socket, a mapping, page faults. For
batches of a few KiB that costs more than to read them. Here a worker sends a `Parcel`: a run of batches whose numbers
lie in one shared block, and beside it what is left of each batch once its memory is taken out, pickled. The
loader puts tensors over the block when a batch's turn comes.

How many batches a parcel holds follows from the options and the parcel's number alone, never from time or data, so
that the parcels of all workers hold equally many and batches come in the turns of the workers as ever.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from tensorquery import _core
from tensorquery.iterator import ShardIterator, Tagged

__all__ = ["Packer", "Parcel", "Parcels", "Sending", "batches_per_parcel", "in_turns"]

PARCEL_BYTES = 1 << 20
"""What a parcel holds where more than one batch is in it: large enough that sending it costs little by the batch, and
small enough for the 64 MiB of shared memory that containers have."""

MOST_BATCHES = 256

_ALIGNMENT = 64


class Sending(NamedTuple):
    """How the workers of a loader send batches; the same for all of them."""

    raw: bool = False
    """Whether a batch crosses as the core delivers it, and the loader builds it."""
    batches: int = 1
    """Batches in one parcel, but for the first ones."""


def batches_per_parcel(batch_bytes: int) -> int:
    """Batches of about so many bytes that go into one parcel, at least one."""
    return max(1, min(MOST_BATCHES, PARCEL_BYTES // max(1, batch_bytes)))


class Parcels:
    """The batches of a worker in runs of growing length: 1, 2, 4 and so on, that the first comes at once.

    What fails after the first batch of a run is raised when the next run is asked for, as if the batches had been
    asked for one by one.
    """

    def __init__(self, batches: ShardIterator, most: int) -> None:
        self._batches = batches
        self._most = most
        self._sent = 0
        self._failure: Exception | None = None

    def __iter__(self) -> Parcels:
        return self

    def __next__(self) -> list[Tagged]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        wanted = min(1 << self._sent, self._most)
        self._sent = min(self._sent + 1, MOST_BATCHES.bit_length())
        run: list[Tagged] = []
        try:
            while len(run) < wanted:
                run.append(next(self._batches))
        except Exception as error:
            # The end of the iteration is one of them.
            if not run:
                raise
            self._failure = error
        return run


class Packer:
    """Makes a parcel of a run of batches, in the worker: torch calls it as the ``collate_fn`` of the loader.

    Args:
        function: The user's, called on each batch.
    """

    def __init__(self, function: Callable[[Any], Any] | None) -> None:
        self._function = function

    def __call__(self, found: Any) -> Any:
        """A parcel of what a worker has found; batches of another loader pass as they are."""
        if isinstance(found, list) and found and isinstance(found[0], Tagged):
            return Parcel.of([self._collated(tagged) for tagged in found])
        # Another DataLoader has taken over this function.
        return found if self._function is None else self._function(found)

    def _collated(self, tagged: Tagged) -> Tagged:
        if self._function is None or tagged.is_report:
            return tagged
        return tagged._replace(batch=self._function(tagged.batch))


class Parcel:
    """Batches of one worker, packed.

    Attributes:
        worker: Whose they are.
        memory: uint8 of shape (bytes,): the numbers of all of them.
    """

    def __init__(self, worker: int, memory: torch.Tensor, letters: list[Tagged]) -> None:
        self.worker = worker
        self.memory = memory
        self._letters = letters

    @classmethod
    def of(cls, run: list[Tagged]) -> Parcel:
        """Pack batches; their numbers are copied once."""
        space = _Space()
        letters = [tagged._replace(batch=space.pickled(tagged.batch)) for tagged in run]
        return cls(run[0].worker, space.filled(), letters)

    def opened(self) -> Iterator[Tagged]:
        """The batches, each unpacked when it is asked for. They share the parcel's memory."""
        memory = self.memory.numpy()
        for letter in self._letters:
            yield letter._replace(batch=_Unpickler(letter.batch, memory).load())

    def pin_memory(self) -> Parcel:
        """What torch's pinning thread calls: the block as a whole moves to pinned memory."""
        self.memory = self.memory.pin_memory()
        return self


class _Space:
    """The block of a parcel, while it is planned: what goes where."""

    def __init__(self) -> None:
        self._sources: list[tuple[int, np.ndarray[Any, Any]]] = []
        self._size = 0

    def pickled(self, batch: Any) -> bytes:
        """`batch` without its memory, for which there is place in the block now."""
        target = io.BytesIO()
        _Pickler(target, self).dump(batch)
        return target.getvalue()

    def place(self, source: np.ndarray[Any, Any]) -> int:
        """Where these bytes will lie."""
        offset = -(-self._size // _ALIGNMENT) * _ALIGNMENT
        self._sources.append((offset, source))
        self._size = offset + source.nbytes
        return offset

    def filled(self) -> torch.Tensor:
        """The block, in shared memory, with everything in its place."""
        storage = torch.UntypedStorage._new_shared(self._size)  # type: ignore[no-untyped-call]
        memory = torch.empty(0, dtype=torch.uint8).set_(storage)
        target = memory.numpy()
        for offset, source in self._sources:
            target[offset : offset + source.nbytes] = source
        return memory


class _Pickler(pickle.Pickler):
    """Leaves out blocks and plain tensors; what else there is goes by value: the worker may be gone when it is unpacked."""

    def __init__(self, target: io.BytesIO, space: _Space) -> None:
        super().__init__(target, pickle.HIGHEST_PROTOCOL)
        self._space = space

    def persistent_id(self, found: Any) -> Any:
        """Where its memory will lie, for what is left out."""
        kind = type(found)
        if kind is _core.Block:
            source = np.frombuffer(found, np.uint8)
            return None, self._space.place(source), source.nbytes
        if kind is torch.Tensor and _is_plain(found):
            flat = found.detach().reshape(-1).view(torch.uint8)
            return found.dtype, self._space.place(flat.numpy()), tuple(found.shape)
        return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements in order are all there is to say of it."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
    )


class _Unpickler(pickle.Unpickler):
    """Puts blocks and tensors over the parcel's memory."""

    def __init__(self, letter: bytes, memory: np.ndarray[Any, Any]) -> None:
        super().__init__(io.BytesIO(letter))
        self._memory = memory

    def persistent_load(self, place: Any) -> Any:
        """What lies at a place that `_Pickler.persistent_id` gave."""
        dtype, offset, shape = place
        if dtype is None:
            return self._memory[offset : offset + shape]
        count = 1
        for axis in shape:
            count *= axis
        if not count:
            return torch.empty(shape, dtype=dtype)
        # Not a view of one tensor of the block, for the reason in `tensors._Torch.array`.
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).reshape(
            shape
        )


def in_turns(parcels: Iterator[Parcel], first: int, workers: int) -> Iterator[Tagged]:
    """The batches of all workers, one of each in turn; workers that have no more are passed over.

    Args:
        parcels: As torch hands them out: one of each worker in turn, beginning with `first`. So where another's
            comes, the one whose turn it is has ended.
        first: The worker whose batch comes first.
        workers: How many there are.
    """
    waiting: list[Iterator[Tagged]] = [iter(())] * workers
    turns = deque((first + step) % workers for step in range(workers))
    while turns:
        worker = turns[0]
        tagged = next(waiting[worker], None)
        if tagged is None:
            parcel = next(parcels, None)
            if parcel is None or parcel.worker != worker:
                turns.popleft()
            if parcel is not None:
                waiting[parcel.worker] = chain(waiting[parcel.worker], parcel.opened())
            continue
        yield tagged
        turns.rotate(-1)
