"""Batches on their way from a worker process to its loader: many of them in one block of shared memory.

torch's queue sends every tensor as a file of its own: a descriptor that crosses a socket, a mapping, page faults. For
batches of a few KiB that costs more than to read them. Here a worker sends a `BatchMessage`: a run of batches whose numbers
lie in one segment of shared memory, with the rest of each batch after its memory is taken out. The
loader puts tensors over the segment when a batch's turn comes. Only a line with their place crosses the queue:
short enough that the pipe takes it as a whole, for of a message that a killed worker left unfinished the loader would
wait for the rest forever.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.callers import called
from tensorquery._util.optional import worker_info
from tensorquery._util.shared_memory import shared
from tensorquery._util.tensor_views import tensor_over
from tensorquery.errors import DataError
from tensorquery.loading.workers.batch_runs import MESSAGE_BYTES, BatchRun, TaggedBatch
from tensorquery.loading.workers.liveness import check_sendable
from tensorquery.loading.workers.shared_memory import MessageHeader, SegmentPool, Segments

__all__ = ["BatchMessage", "BatchPacker", "as_they_come", "in_turns"]

_ALIGNMENT = 64

_Place = tuple[int, int] | bytes

# A flat array of bytes, or what the core delivers of a batch.
_Source = np.ndarray[Any, Any] | _core.LooseBlock


class BatchPacker:
    """Makes a message of a run of batches, in the worker: torch calls it as the ``collate_fn`` of the loader.

    Args:
        function: The user's, called on each batch.

    Attributes:
        header: What the workers that start next know of their loader.
    """

    header: MessageHeader | None = None

    def __init__(self, function: Callable[[Any], Any] | None) -> None:
        self._function = function
        self._segments: Segments | None = None

    def __call__(self, found: Any) -> Any:
        """A message with a worker's batches; batches of another loader pass unchanged."""
        if isinstance(found, BatchRun):
            if self._function is not None:
                try:
                    found = found._replace(batches=list(map(self._collated, found.batches)))
                except Exception as error:
                    check_sendable(error)
                    raise
            return self._packed(found)
        # Another DataLoader has taken over this function.
        return found if self._function is None else self._function(found)

    def _collated(self, tagged: TaggedBatch) -> TaggedBatch:
        if self._function is None or tagged.is_report:
            return tagged
        return tagged._replace(batch=called(self._function, tagged.batch))

    def _packed(self, run: BatchRun) -> BatchMessage:
        """Numbers are copied once, into memory that the loader sees."""
        space = _Space()
        # Plain tuples, which cost half as much to pickle.
        letters = [(space.letter(batch), *tags) for batch, *tags in run.batches]
        written = pickle.dumps(letters, pickle.HIGHEST_PROTOCOL)
        place: _Place = written
        if len(written) <= MESSAGE_BYTES:
            place = (space.place(np.frombuffer(written, np.uint8)), len(written))
        worker, head, lent = run.batches[0].worker, self.header, None
        # Whose batches a process reads changes with the epoch; what it has lent stays its own.
        info = worker_info()
        sender = worker if info is None else info.id
        if head is not None:
            if self._segments is None:
                self._segments = Segments(head.states[sender])
            lent = self._segments.lend(space.size)
        if head is None or lent is None:
            memory = space.filled(shared(space.size))
            return BatchMessage(worker, place, memory, is_torn=run.is_torn)
        segment, memory, is_new = lent
        space.filled(memory)
        address = (head.pool, sender, segment, memory if is_new else None, space.size)
        return BatchMessage(worker, place, address=address, is_torn=run.is_torn)


class BatchMessage:
    """Batches of one worker, packed.

    Args:
        worker: Whose they are.
        place: Where in its memory the batches are that memory was taken out of, and how many bytes they take; or those
            bytes, where they are many: containers have little shared memory.
        memory: The numbers of all of them; for one that is sent, memory of its own.
        address: The argument of `SegmentPool.received` for a sent message, whose memory is a segment.
        is_torn: Whether an error of its worker follows.
    """

    def __init__(
        self,
        worker: int,
        place: _Place,
        memory: Any = None,
        address: tuple[Any, ...] | None = None,
        is_torn: bool = False,
    ) -> None:
        self.worker = worker
        self.memory = memory
        self.is_torn = is_torn
        self._place = place
        self._address = address

    def __reduce__(self) -> Any:
        return _arrived, (self.worker, self._place, self.memory, self._address, self.is_torn)

    def opened(self, build: Callable[[Any], Any] | None = None) -> Iterator[TaggedBatch]:
        """The batches, each unpacked when it is asked for. They share the message's memory.

        Args:
            build: Makes a batch from the core's output, if that crosses the queue.
        """
        memory, self.memory = self.memory, None
        letters = self._place
        if not isinstance(letters, bytes):
            letters = tensor_over(memory, torch.uint8, *letters).numpy()
        parts: Any = memory
        if isinstance(memory, _core.Lease):
            parts = memoryview(parts)
        for letter, *tags in pickle.loads(letters):
            batch = letter
            if isinstance(letter, bytes):
                batch = _Unpickler(letter, memory).load()
            elif letter is not None:
                rows, (start, end), *others = letter
                batch = (rows, parts[start:end], *others)
                batch = batch if build is None else build(batch)
            yield TaggedBatch(batch, *tags)

    def pin_memory(self) -> BatchMessage:
        """Move all numbers together to pinned memory; torch's pinning thread calls this."""
        if self.memory is not None and len(self.memory):
            self.memory = torch.frombuffer(self.memory, dtype=torch.uint8).pin_memory()
        return self


def _arrived(
    worker: int, place: _Place, memory: torch.Tensor | None, address: Any, is_torn: bool
) -> BatchMessage:
    """A message as its loader gets it: lent from now on, whether it is opened or not."""
    if address is not None:
        return BatchMessage(worker, place, SegmentPool.received(*address), is_torn=is_torn)
    return BatchMessage(worker, place, None if memory is None else memory.numpy(), is_torn=is_torn)


class _Space:
    """The layout of a message's memory, while it is planned.

    Attributes:
        size: Bytes so far.
    """

    def __init__(self) -> None:
        self._sources: list[tuple[int, _Source]] = []
        self._slots: Any = None
        self.size = 0

    def letter(self, batch: Any) -> Any:
        """`batch` without its memory, for which there is place now. Of no batch nothing is left."""
        if type(batch) is tuple and len(batch) == 5 and type(batch[1]) is _core.LooseBlock:
            # As the core delivers it: nothing else in it is large, or of a kind that pickle does not know.
            rows, block, slots, *others = batch
            if slots == self._slots:
                slots = self._slots  # the same object is pickled once
            self._slots = slots
            return (rows, (self.place(block), self.size), slots, *others)
        if batch is None:
            return None
        target = io.BytesIO()
        _Pickler(target, self).dump(batch)
        return target.getvalue()

    def place(self, source: _Source) -> int:
        """Where these bytes will lie."""
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self._sources.append((offset, source))
        self.size = offset + len(source)
        return offset

    def filled(self, memory: torch.Tensor) -> torch.Tensor:
        """`memory`, with everything in its place."""
        target = memory.numpy()
        for offset, source in self._sources:
            if type(source) is _core.LooseBlock:
                source.write_to(target, offset)
            else:
                target[offset : offset + len(source)] = source
        return memory


class _Pickler(pickle.Pickler):
    """Leaves out plain tensors and Arrow batches. All else goes by value: the worker may be gone when it is unpacked."""

    def __init__(self, target: io.BytesIO, space: _Space) -> None:
        super().__init__(target, pickle.HIGHEST_PROTOCOL)
        self._space = space

    def persistent_id(self, found: Any) -> Any:
        """The place of an object's memory; None for objects that are not left out."""
        if type(found) is torch.Tensor and _is_plain(found):
            flat = found.detach().reshape(-1).view(torch.uint8)
            return found.dtype, self._space.place(flat.numpy()), tuple(found.shape)
        pyarrow = sys.modules.get("pyarrow")
        if pyarrow is not None and type(found) is pyarrow.RecordBatch:
            # Pickling would take the whole allocation along, and lose the nulls in lists.
            written = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(written, found.schema) as writer:
                writer.write_batch(found)
            stream = np.frombuffer(written.getvalue(), np.uint8)
            return None, self._space.place(stream), (len(stream),)
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
    """Puts tensors, and Arrow batches, over the message's memory."""

    def __init__(self, letter: bytes, memory: Any) -> None:
        super().__init__(io.BytesIO(letter))
        self._memory = memory

    def persistent_load(self, place: Any) -> Any:
        """Load the object at a place that `_Pickler.persistent_id` gave."""
        dtype, offset, shape = place
        if dtype is None:
            stream = tensor_over(self._memory, torch.uint8, offset, *shape).numpy()
            pyarrow = import_pyarrow()
            return pyarrow.ipc.open_stream(pyarrow.py_buffer(stream)).read_next_batch()
        return tensor_over(self._memory, dtype, offset, math.prod(shape)).reshape(shape)


def in_turns(
    messages: Iterator[BatchMessage],
    first: int,
    workers: int,
    build: Callable[[Any], Any] | None = None,
) -> Iterator[TaggedBatch]:
    """The batches of all workers, one of each in turn; workers that have no more are passed over.

    Args:
        messages: As torch hands them out: one of each worker in turn, beginning with `first`. So where another's
            comes, the one whose turn it is has ended, or its error is on its way: the other message was longer than
            the run before the error, and its batches are not delivered in place of the failed ones.
        first: The worker whose batch comes first.
        workers: How many there are.
        build: As for `BatchMessage.opened`.

    Raises:
        DataError: A worker has ended without its last batch.
    """
    waiting: list[Iterator[TaggedBatch]] = [iter(())] * workers
    torn = [False] * workers
    ended = [False] * workers
    turns = deque((first + step) % workers for step in range(workers))
    while turns:
        worker = turns[0]
        tagged = next(waiting[worker], None)
        if tagged is None:
            message = next(messages, None)
            if message is None or (message.worker != worker and not torn[worker]):
                if not ended[worker]:
                    raise _fell_silent(worker)
                turns.popleft()
            if message is not None:
                torn[message.worker] = message.is_torn
                waiting[message.worker] = chain(waiting[message.worker], message.opened(build))
            continue
        ended[worker] = tagged.last
        yield tagged
        turns.rotate(-1)


def as_they_come(
    messages: Iterator[BatchMessage], workers: int, build: Callable[[Any], Any] | None = None
) -> Iterator[TaggedBatch]:
    """The batches of all workers, in the order in which their messages come.

    Args:
        messages: As torch hands them out.
        workers: How many there are.
        build: As for `BatchMessage.opened`.

    Raises:
        DataError: A worker has ended without its last batch.
    """
    under_way = set(range(workers))
    for message in messages:
        for tagged in message.opened(build):
            if tagged.last:
                under_way.discard(tagged.worker)
            yield tagged
    if under_way:
        raise _fell_silent(min(under_way))


def _fell_silent(worker: int) -> DataError:
    return DataError(
        f"worker {worker} ended before its last batch, and did not say why; resume from the last state, and please "
        "report it"
    )
