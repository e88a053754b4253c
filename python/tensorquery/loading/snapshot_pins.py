"""One snapshot and one moment for all ranks: all read the pins of the first one."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, TypeVar

from tensorquery._util.digests import digest
from tensorquery.distributed.rendezvous import Board, StoreLostError
from tensorquery.distributed.topology import Topology, group_store
from tensorquery.errors import NotShardableError, StorageError
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query

__all__ = ["agreed"]

Pinned = TypeVar("Pinned", "Query", "Mixture", "Query | Mixture")

_PATIENCE = 60.0
"""Seconds that the rank which pins first may take to say what it pinned; it has loaded its tables by then."""

_LOOK = 0.01
"""Seconds between two looks."""

_turns: Counter[str] = Counter()
"""How often each query was agreed on in this process: the ranks make their datasets in the same order."""


def agreed(query: Pinned, topology: Topology, process_group: Any | None) -> Pinned:
    """The query at the snapshots and the moment that the first rank to come has pinned.

    Each rank resolves the current snapshot and `now()` by itself, and a commit or midnight may lie between two of them. Where
    ranks share a process group, the first one publishes its pins in the group's store and the others take
    them. Without a group every rank keeps its own snapshots: give all of them the same ``snapshot_id`` then. A moment that
    ranks cannot agree on is refused: unlike a commit, two instants always differ.

    Args:
        query: The query as this rank planned it.
        topology: The place of this process.
        process_group: The data-parallel group; None: the global one.

    Returns:
        The query itself, or one with other pins.

    Raises:
        NotShardableError: It calls `now()` or the like, and the ranks share no group.
        StorageError: The rank that came first did not say what it pinned.
    """
    snapshots, moment = query._pins(), query._core.moment()
    store = group_store(topology, process_group) if snapshots or moment else None
    if store is None:
        if moment and topology.world_size > 1:
            raise NotShardableError(
                "the query calls now(), current_date or another function whose value is fixed when the query is made "
                f"({moment} here), and each of the {topology.world_size} ranks, which share no process group, would fix "
                f"another one; write the value as a literal ({_literal(moment)}), or let the ranks agree: call "
                "torch.distributed.init_process_group() first, or give process_group=tensorquery.ProcessGroup(…)"
            )
        return query
    pins = {"snapshots": snapshots, "moment": moment}
    name = digest([_unpinned(query), sorted(snapshots)])
    turn = _turns[name]
    _turns[name] += 1
    board = Board(store, f"pins/{name}/{turn}", 1)
    try:
        if board.claim(1):
            board.put("pins", pins)
            return query
        until = time.monotonic() + _PATIENCE
        while (first := board.get("pins")) is None:
            if time.monotonic() > until:
                raise StorageError(
                    "another rank was first to pin the query's Iceberg snapshots and the moment of now(), and did not say "
                    f"which within {_PATIENCE:.0f} seconds; it may have failed: see its own error, or give all ranks the "
                    "same snapshot_id, and literals"
                )
            time.sleep(_LOOK)
    except StoreLostError as error:
        raise StorageError(
            "the ranks cannot agree on the query's Iceberg snapshots and the moment of now(), since the process group's "
            f"store does not answer: {error}"
        ) from error
    if first["snapshots"] != snapshots:
        query = query._at(first["snapshots"])
    return query if first["moment"] == moment else query._at_moment(first["moment"])


def _unpinned(query: Query | Mixture) -> Any:
    """The query without the pins of this rank, equal on all ranks."""
    if isinstance(query, Query):
        return query._parts_without_pins()
    return [each._parts_without_pins() for each in query.queries]


def _literal(moment: str) -> str:
    """A moment in SQL."""
    return f"TIMESTAMP '{moment}'" if "T" in moment else f"DATE '{moment}'"
