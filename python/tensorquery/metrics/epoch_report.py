"""The report at the end of an epoch: a line in the log, and warnings with advice where something held it up.

Nothing here waits for another rank. Ranks that are in one process group leave their numbers in the group's store, and
whoever comes last compares them; where a rank never comes, nobody does.
"""

from __future__ import annotations

import itertools
import logging
import statistics
from collections.abc import Mapping
from typing import Any

from tensorquery.distributed.rendezvous import Board, StoreLostError
from tensorquery.distributed.topology import Topology, group_store

__all__ = ["Reporter", "balance_advice", "input_advice", "summary_line"]

_LOG = logging.getLogger("tensorquery")

LONG_EPOCH = 30.0
"""Seconds below which an epoch says nothing of those to come: reading ahead has to begin, and caches to fill."""

INPUT_BOUND = 0.25
"""The part of an epoch in which a training loop may wait for input before it is worth a warning."""

UNBALANCED = 0.1
"""The part of an epoch by which one rank may wait longer than the median rank."""

_numbers = itertools.count()


class Reporter:
    """Logs a report at the end of each epoch.

    Args:
        topology: The place of this rank.
        process_group: The group whose ranks share the data; None is the global one.
        fingerprint: Of the plan that the ranks share.
        threads: Threads that decode in each process.
    """

    def __init__(
        self, topology: Topology, process_group: Any | None, fingerprint: str, threads: int
    ) -> None:
        self._topology = topology
        self._process_group = process_group
        self._threads = threads
        # The loaders of a program are made in the same order on all ranks; where they are not, ranks find no numbers of
        # others, or compare epochs of equal queries.
        self._name = f"epochs/{fingerprint}/{next(_numbers)}"
        self._warned: set[str] = set()

    def epoch_ended(self, metrics: Mapping[str, float], epoch: int, workers: int) -> None:
        """Log the report of an epoch that was delivered to its end."""
        _LOG.info(
            "%s",
            summary_line(metrics, epoch, self._topology),
            extra={"epoch": epoch, "rank": self._topology.rank, "metrics": dict(metrics)},
        )
        if metrics["elapsed_seconds"] < LONG_EPOCH:
            return
        self._warn("input", input_advice(metrics, workers, self._threads))
        self._warn("balance", self._balance(metrics, epoch))

    def _warn(self, kind: str, text: str | None) -> None:
        """Warn once of each kind: the next epochs will be no different."""
        if text is not None and kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("rank %d of %d: %s", self._topology.rank, self._topology.world_size, text)

    def _balance(self, metrics: Mapping[str, float], epoch: int) -> str | None:
        """Leave this rank's numbers for the others; the one that comes last says what all of them mean."""
        store = group_store(self._topology, self._process_group)
        if store is None:
            return None
        ranks = self._topology.world_size
        board = Board(store, f"{self._name}/{epoch}", ranks)
        try:
            board.put(self._topology.rank, [metrics["input_seconds"], metrics["elapsed_seconds"]])
            # Whoever counts the last of them finds the numbers of all, without waiting.
            if board.claim(1) != range(ranks - 1, ranks):
                return None
            found = [board.get(rank) for rank in range(ranks)]
        except StoreLostError as error:
            _LOG.info("the process group's store does not answer (%s)", error)
            return None
        numbers = [each for each in found if isinstance(each, list) and len(each) == 2]
        return balance_advice(numbers) if len(numbers) == ranks else None


def summary_line(metrics: Mapping[str, float], epoch: int, topology: Topology) -> str:
    """An epoch in a line.

    >>> counts = {"rows": 4800.0, "batches": 96.0, "elapsed_seconds": 1.5, "wait_share": 0.25, "bytes_read": 3e6, "requests": 14.0}
    >>> summary_line(counts, 3, Topology(0, 1))
    'epoch 3: 4,800 rows in 96 batches, 1.5 s (3,200 rows/s), wait share 25%, 2.9 MiB read in 14 requests'
    """
    who = f", rank {topology.rank} of {topology.world_size}" if topology.world_size > 1 else ""
    elapsed = metrics["elapsed_seconds"]
    rate = metrics["rows"] / elapsed if elapsed > 0 else 0.0
    extra = "".join(
        f", {metrics[field]:,.0f} {field.replace('_', ' ')}"
        for field in ("cache_hits", "retries", "throttled", "quarantined_splits")
        if metrics.get(field)
    )
    return (
        f"epoch {epoch}{who}: {metrics['rows']:,.0f} rows in {metrics['batches']:,.0f} batches, {elapsed:.1f} s "
        f"({rate:,.0f} rows/s), wait share {metrics['wait_share']:.0%}, {metrics['bytes_read'] / 2**20:,.1f} MiB read in "
        f"{metrics['requests']:,.0f} requests{extra}"
    )


def input_advice(metrics: Mapping[str, float], workers: int, threads: int) -> str | None:
    """Advice for a training loop that waited for its input; None where it hardly did.

    Args:
        metrics: Of the epoch.
        workers: Worker processes.
        threads: Threads that decode in each process.
    """
    share = metrics["wait_share"]
    if share <= INPUT_BOUND:
        return None
    elapsed, waited = metrics["elapsed_seconds"], metrics["input_seconds"]
    processes = max(1, workers)
    busy = metrics["decode_seconds"] + metrics["convert_seconds"]
    said = f"training is input-bound: {share:.0%} of {elapsed:.0f} seconds the loop waited for its batches. "
    if not workers and metrics["wait_seconds"] < 0.5 * waited:
        return said + (
            "Most of that is not reading, but what this process does to a batch (transform, collate_fn, pinning): try "
            "transform_threads=, or num_workers="
        )
    if metrics["throttled"]:
        return said + (
            f"The store throttled {metrics['throttled']:,.0f} requests: try local_cache=, fewer ranks that read at once, or "
            "larger files"
        )
    if busy > 0.6 * elapsed * processes * threads:
        return said + (
            f"The {processes * threads} threads that decode were busy: read fewer columns, filter in SQL, store the data "
            'less compressed, stage what a query computes (stage="always"), or give each rank more CPU cores'
        )
    if workers and busy < 0.3 * elapsed * processes:
        return said + (
            "The workers hardly decoded: it is transform or collate_fn in them, or storage, that takes the time; try more "
            "num_workers, and local_cache= where files are remote"
        )
    return said + (
        "The threads that decode were not busy, so storage is slow: try local_cache= for remote files, larger row groups, "
        "or smaller split_bytes= where there are few splits"
    )


def balance_advice(numbers: list[list[float]]) -> str | None:
    """A warning where one rank waited for its input much longer than the others; None where none did.

    Ranks that train together take each step together, so that all of them wait for the slowest one.

    Args:
        numbers: By rank the seconds that it waited, and the seconds of its epoch.

    >>> balance_advice([[1.0, 60.0], [2.0, 60.0], [1.0, 60.0]])
    >>> print(balance_advice([[1.0, 60.0], [31.0, 60.0], [1.0, 60.0]])[:70])
    ranks are unbalanced: rank 1 waited 31 seconds for its input, the medi
    """
    waits = [waited for waited, _ in numbers]
    slowest = max(range(len(waits)), key=waits.__getitem__)
    median = statistics.median(waits)
    if waits[slowest] - median <= UNBALANCED * numbers[slowest][1]:
        return None
    return (
        f"ranks are unbalanced: rank {slowest} waited {waits[slowest]:.0f} seconds for its input, the median rank "
        f"{median:.0f}, and in each step all of them wait for the slowest. query.plan_shards(world_size={len(waits)}) shows "
        "how bytes are divided; smaller split_bytes= divide them more evenly. Where bytes are even, look at that rank's "
        "machine: its disk, its network, and what else runs there"
    )
