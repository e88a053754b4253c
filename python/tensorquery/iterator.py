"""The iterator over one shard's batches, and how far it has come."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensorquery.devices import Copies, one_ahead
from tensorquery.distributed import threads_for
from tensorquery.dynamic import Ledger, message_of
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.quality import stack_level_outside
from tensorquery.tensors import tensor_options
from tensorquery.threads import Transformed, TransformThreads

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.dataset import QueryDataset

__all__ = ["Progress", "ShardIterator", "Tagged"]


@dataclass
class Progress:
    """How far this rank has come in the epoch that it delivers.

    Attributes:
        epoch: The epoch.
        workers: Worker processes per rank; None before an iteration has begun.
        parents: The runs of the same epoch before this one.
        step: Batches consumed of this rank.
        start: By worker, the cursor from which its shard is read; an empty one is the shard's start.
        cursors: By worker, how far its shard is consumed, as a list or as JSON; only kept where that does not
            follow from the step.
        turn: The worker whose batch comes next.
        ledger: What the workers have consumed, where they take splits as they come.
        base: The part of a state's checksum that stays the same.
    """

    epoch: int
    workers: int | None = None
    parents: tuple[dict[str, Any], ...] = ()
    step: int = 0
    start: list[list[int]] = field(default_factory=list)
    cursors: list[list[int] | str] | None = None
    turn: int = 0
    ledger: Ledger | None = None
    base: int | None = None


class Tagged(NamedTuple):
    """A batch on its way from a worker to its loader."""

    batch: Any
    worker: int
    last: bool
    """Whether it is the last of its worker."""
    cursor: str
    """How far the worker's shard is consumed by it; empty where that follows from the step."""
    is_report: bool = False
    """Whether it is no batch: the worker has ended, and `cursor` is the list of the pieces that it took."""


def _as_it_is(raw: Any) -> Any:
    return raw


class ShardIterator:
    """The batches of one shard, with a state of its own. Made by ``iter(dataset)``.

    Reading starts with the first batch that is asked for.
    """

    def __init__(
        self, dataset: QueryDataset, progress: Progress, worker: int, in_loader: bool
    ) -> None:
        self._dataset = dataset
        self._progress = progress
        self._worker = worker  # the number of the shard on its rank
        self.in_loader = in_loader
        """Whether this process is a worker of a loader of `create_dataloader`."""
        self._stream: _core.BatchStream | None = None
        self._superseded = False
        self._reported = False
        self.closed = False
        """Whether it has ended, failed, or was closed."""
        self.last = False
        """Whether the batch delivered last is the last of the shard."""
        _, builder = dataset._here()
        takes = dataset._epochs.is_dynamic(progress.workers or 0)
        self._taking = dataset._taking() if takes else None
        self._build = _as_it_is if in_loader and dataset._sent.raw else builder.build
        # By several threads, or as the first of the calls on each batch.
        self._in_threads = None if dataset._transform_threads is None else dataset._transform
        self._threads: TransformThreads | None = None
        self._copies: Copies | None = None
        self._ahead: Iterator[Transformed] | None = None
        calls = (None if self._in_threads is not None else dataset._transform,)
        self._calls = [call for call in calls if call is not None]

    def __iter__(self) -> ShardIterator:
        return self

    def then(self, *calls: Callable[[Any], Any] | None) -> None:
        """Call these on every batch, after the transform and before it counts as delivered."""
        self._calls.extend(call for call in calls if call is not None)

    def pin_blocks(self) -> None:
        """Put every batch into pinned memory, all its numbers together."""
        build = self._build

        def pinned(raw: Any) -> Any:
            rows, block, *others = raw
            memory = (
                torch.frombuffer(block, dtype=torch.uint8).pin_memory() if len(block) else block
            )
            return build((rows, memory, *others))

        self._build = pinned

    def onto(self, copies: Copies | None) -> None:
        """Copy every batch to a device, after the other calls; one is on its way while the one before is in use."""
        self._copies = copies

    def __next__(self) -> Any:
        if self.closed:
            if self._superseded:
                raise ConfigError(
                    "this iterator was closed, because a newer one was started; keep using the newer one"
                )
            raise StopIteration
        stream = self._stream or self._start()
        try:
            self._warn_of_cache(stream)
            if self._ahead is not None:
                return self._found_ahead(self._ahead)
            raw = stream.next()
            if raw is None:
                if self._taking is not None and not self._reported:
                    self._reported = True
                    return Tagged(None, self._worker, True, json.dumps(stream.taken()), True)
                self._end()
                raise StopIteration
            batch = self._build(raw)
            for call in self._calls:
                batch = call(batch)
        except BaseException:
            self.close()
            raise
        progress = self._progress
        progress.step += 1
        self.last = stream.last
        if self._taking is not None:
            message = message_of(stream.consumed(), stream.cursor())
            return Tagged(batch, self._worker, self.last, message)
        if progress.cursors is not None:
            progress.cursors[self._worker] = stream.cursor()
        if self.in_loader:
            follows = self._dataset._follows(progress.workers or 0)
            cursor = "" if follows else json.dumps(stream.cursor())
            return Tagged(batch, self._worker, self.last, cursor)
        if self.last:
            self._end()
        return batch

    def _found_ahead(self, ahead: Iterator[Transformed]) -> Any:
        """The next batch, made ahead of its turn; only now it counts."""
        found = next(ahead, None)
        if found is None:
            self._end()
            raise StopIteration
        progress = self._progress
        progress.step += 1
        self.last = found.last
        if progress.cursors is not None:
            progress.cursors[self._worker] = found.cursor
        if self.last:
            self._end()
        return found.batch

    @staticmethod
    def _warn_of_cache(stream: _core.BatchStream) -> None:
        trouble = stream.cache_trouble()
        if trouble is not None:
            warnings.warn(trouble, UserWarning, stacklevel=stack_level_outside())

    def _start(self) -> _core.BatchStream:
        dataset, progress = self._dataset, self._progress
        plan, _ = dataset._here()
        workers = progress.workers or 0
        shards = dataset._epochs.shards(workers, progress.epoch, progress.parents)
        options = None
        if dataset._output_format in ("torch", "numpy"):
            options = tensor_options(**dataset._tensor_kwargs)
        threads = threads_for(dataset.topology, workers)
        if self._taking is not None:
            self._stream = plan.stream_taken(
                shards,
                dataset.rank,
                self._worker,
                dataset._counter,
                self._taking,
                threads,
                options,
            )
            return self._stream
        self._stream = plan.stream(
            shards,
            dataset.rank,
            self._worker,
            progress.start[self._worker],
            threads,
            options,
            dataset._stage,
        )
        if self._in_threads is not None:
            self._threads = TransformThreads(
                self._stream, self._build, self._in_threads, dataset._transform_threads or 1
            )
        if self._threads is not None or self._copies is not None:
            self._ahead = _made_ahead(
                self._stream, self._threads, self._build, self._calls, self._copies
            )
        return self._stream

    def _end(self) -> None:
        # In a worker the epoch is not over: others may still have batches.
        if self._progress.workers == 0:
            self._dataset._finished(self._progress)

    def supersede(self) -> None:
        """Close it because a newer one was started."""
        self._superseded = True
        self.close()

    def close(self) -> None:
        """Stop reading; nothing where it is closed already."""
        self.closed = True
        if self._threads is not None:
            self._threads.close()
        if self._stream is not None:
            self._dataset._metrics = self._stream.metrics()
            self._stream.close()

    def __del__(self) -> None:
        # Not where __init__ failed.
        if getattr(self, "_stream", None) is not None and not self.closed:
            self.close()

    def metrics(self) -> dict[str, float]:
        """Counts so far; see `QueryDataset.metrics`."""
        return {} if self._stream is None else self._stream.metrics()

    def state_dict(self) -> dict[str, Any]:
        """How far it was consumed; see `QueryDataset.state_dict`."""
        dataset = self._dataset
        if dataset._is_in_worker():
            return dataset._state_of(self._progress, self._worker)
        return dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, before the first batch.

        Raises:
            CheckpointMismatchError: The state is of another run, or batches were delivered already.
        """
        dataset = self._dataset
        checked = dataset._checked(state)
        if self._stream is not None:
            raise CheckpointMismatchError(
                "this iterator has begun; load the state before its first batch"
            )
        workers = self._progress.workers or 0
        self._progress = dataset._begin(workers, checked["epoch"], checked)


def _made_ahead(
    stream: _core.BatchStream,
    threads: TransformThreads | None,
    build: Callable[[Any], Any],
    calls: list[Callable[[Any], Any]],
    copies: Copies | None,
) -> Iterator[Transformed]:
    """Batches, and where the shard stands after each, however far ahead of the training loop they are made."""

    def finished() -> Iterator[Transformed]:
        if threads is not None:
            yield from iter(threads.next, None)
            return
        for raw in iter(stream.next, None):
            yield Transformed(build(raw), stream.cursor(), stream.last)

    def called() -> Iterator[Transformed]:
        for found in finished():
            batch = found.batch
            for call in calls:
                batch = call(batch)
            yield replace(found, batch=batch)

    if copies is None:
        return called()

    def copied(found: Transformed) -> Callable[[], Transformed]:
        arrived = copies(found.batch)
        return lambda: replace(found, batch=arrived())

    return one_ahead(called(), copied)
