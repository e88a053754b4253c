"""Counts of a dataset while it is read, by rank and by worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tensorquery.metrics.counters import CORE_COUNTS, SharedCounters
from tensorquery.metrics.iteration import Watch

__all__ = ["FIELDS", "Metrics", "added_up", "measured"]

FIELDS = {
    "rows": "Rows received by the training loop; of a worker, rows sent.",
    "batches": "Batches received by the training loop; of a worker, batches sent.",
    "padded_rows": "Rows repeated to fill a last batch.",
    "splits": "Splits read to their end; one that is cut between shards counts in each.",
    "files": "Files read at least in part; a file that several workers read counts for each.",
    "split_share": "Shuffle quality: the mean part of a batch from the split with most rows in its shuffle window, 0 to 1.",
    "buffered_rows": "Rows of finished batches that are ready and not received yet.",
    "elapsed_seconds": "Seconds from the first batch asked for to now, or to the end.",
    "input_seconds": "Seconds that the training loop spent in getting batches: waiting, building, transforms.",
    "wait_seconds": "Seconds of these that it waited for rows; of a worker, that the worker waited for them.",
    "wait_share": "input_seconds / elapsed_seconds, 0 to 1.",
    "decode_seconds": "Seconds that threads spent reading local files, decoding, filtering and joining, all threads together.",
    "convert_seconds": "Seconds that threads spent gathering rows into tensors, all threads together.",
    "bytes_read": "Bytes read of storage.",
    "requests": "Reads of storage: requests over a network, reads of local files.",
    "retries": "Network requests of the process that failed, were throttled or broke off.",
    "throttled": "Network requests among these that the store had throttled.",
    "request_wait_seconds": "Seconds that network requests waited for their turn, all requests together.",
    "cache_hits": "Reads that the local cache answered.",
    "cache_bytes": "Bytes that came from the local cache.",
    "quarantined_splits": "Bad files, row groups, stripes and byte ranges that are left out.",
    "quarantined_rows": "Rows in these, as far as metadata says them.",
}
"""The meaning of each field."""

_SHARES = ("split_share", "wait_share", "buffered_rows", "elapsed_seconds")
"""Gauges: fields that do not only grow, or are of the clock."""


class Metrics(dict[str, float]):
    """Counts of one rank in an iteration: a dict by field. Made by `QueryDataset.metrics`, which lists the fields.

    Fields that nobody measured are not there: ``input_seconds`` and ``wait_share`` need a loader, and
    ``quarantined_…`` ``on_error="skip"``.

    Attributes:
        rank: The rank.
        epoch: The epoch.
        workers: The same by worker; empty where the training process reads by itself.
    """

    def __init__(
        self,
        counts: Mapping[str, float],
        *,
        rank: int,
        epoch: int,
        workers: Sequence[Mapping[str, float]] = (),
    ) -> None:
        super().__init__({name: counts[name] for name in FIELDS if name in counts})
        self.rank = rank
        self.epoch = epoch
        self.workers = [{name: each[name] for name in FIELDS if name in each} for each in workers]

    def to_prometheus(self) -> str:
        """These numbers in Prometheus' text format, as a scrape or the node exporter's textfile collector takes them.

        Returns:
            Lines such as ``tensorquery_rows_total{rank="0"} 4096``; those of a worker are
            ``tensorquery_worker_rows_total{rank="0",worker="1"}``. What grows begins at 0 in each iteration, which
            Prometheus takes for the reset of a counter.
        """
        lines: list[str] = []
        ranks = [({"rank": self.rank}, self)]
        workers = [
            ({"rank": self.rank, "worker": number}, each)
            for number, each in enumerate(self.workers)
        ]
        for prefix, rows in (("tensorquery_", ranks), ("tensorquery_worker_", workers)):
            for field, meaning in FIELDS.items():
                found = [(labels, counts[field]) for labels, counts in rows if field in counts]
                if not found:
                    continue
                gauge = field in _SHARES
                name = prefix + field + ("" if gauge else "_total")
                lines.append(f"# HELP {name} {meaning}")
                lines.append(f"# TYPE {name} {'gauge' if gauge else 'counter'}")
                for labels, value in found:
                    marks = ",".join(f'{key}="{label}"' for key, label in labels.items())
                    lines.append(f"{name}{{{marks}}} {_number(value)}")
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """A number as text that is parsed without loss.

    >>> _number(3.0), _number(0.25), _number(1e300)
    ('3', '0.25', '1e+300')
    """
    whole = math.isfinite(value) and value == int(value) and abs(value) < 2**53
    return str(int(value)) if whole else repr(float(value))


def added_up(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The counts of several workers together.

    >>> both = added_up([{"rows": 10, "split_share": 1.0}, {"rows": 30, "split_share": 0.2}])
    >>> both["rows"], round(both["split_share"], 2)
    (40, 0.4)
    """
    found = {name: sum(each[name] for each in counts) for name in CORE_COUNTS if name in counts[0]}
    rows = found["rows"] or 1
    shares = [each["split_share"] * each["rows"] for each in counts]
    found["split_share"] = sum(shares) / rows if found["rows"] else 1.0
    if "elapsed_seconds" in found:
        found["elapsed_seconds"] = max(each["elapsed_seconds"] for each in counts)
    return found


def measured(
    watch: Watch | None,
    counters: SharedCounters | None,
    own: Callable[[], tuple[int, dict[str, float]] | None],
    quarantined: Mapping[str, float],
    *,
    rank: int,
    epoch: int,
) -> Metrics:
    """The counts of an iteration.

    Args:
        watch: What its loader has noted; None without one.
        counters: Where its workers write down what they count.
        own: The epoch and the counts of the training process' own iterator, the current or the last one.
        quarantined: The files and splits left out.
        rank: The rank.
        epoch: The epoch where nothing was read yet.
    """
    workers: list[dict[str, float]] = []
    counts: dict[str, float] = dict.fromkeys(CORE_COUNTS, 0.0)
    if watch is not None and watch.workers:
        assert counters is not None
        workers = counters.of(watch.iteration, watch.workers)
        counts = added_up(workers)
        ready = counts["rows"] - watch.rows
        # Batches that workers have sent are not received yet.
        counts.update(rows=float(watch.rows), buffered_rows=max(0.0, ready))
        counts.update(wait_seconds=watch.wait_seconds)
    else:
        known = own()
        if known is not None:
            epoch, counts = known[0], dict(known[1])
    if watch is not None:
        epoch = watch.epoch
        counts.update(watch.times(), batches=float(watch.batches))
    counts.update(quarantined)
    return Metrics(counts, rank=rank, epoch=epoch, workers=workers)
