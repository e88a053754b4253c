"""One snapshot for all ranks: what the first of them pinned, the others read too."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tensorquery.checkpoint import digest
from tensorquery.distributed import Topology, group_store
from tensorquery.errors import StorageError
from tensorquery.rendezvous import Board, StoreLostError

if TYPE_CHECKING:
    from tensorquery.query import Query

__all__ = ["agreed"]

_PATIENCE = 60.0
"""Seconds that the rank which pins first may take to say what it pinned; it has loaded its tables by then."""

_LOOK = 0.01
"""Seconds between two looks."""

_turns: Counter[str] = Counter()
"""How often each query was agreed on in this process: the ranks make their datasets in the same order."""


def agreed(query: Query, topology: Topology, process_group: Any | None) -> Query:
    """The query at the snapshots that the first rank to come has pinned.

    Each rank resolves the current snapshot by itself, and a commit may lie between two of them. Where ranks
    share a process group, the first one publishes its pins in the group's store and the others take
    them. Without a group every rank keeps its own: give all of them the same ``snapshot_id`` then.

    Args:
        query: The query as this rank planned it.
        topology: The place of this process.
        process_group: The data-parallel group; None: the global one.

    Returns:
        The query itself, or one at other snapshots.

    Raises:
        StorageError: The rank that came first did not say what it pinned.
    """
    pins = query._pins()
    store = group_store(topology, process_group) if pins else None
    if store is None:
        return query
    name = digest([query._parts_without_pins(), sorted(pins)])
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
                    "another rank was first to pin the query's Iceberg snapshots and did not say which within "
                    f"{_PATIENCE:.0f} seconds; it may have failed: see its own error, or give all ranks the same snapshot_id"
                )
            time.sleep(_LOOK)
    except StoreLostError as error:
        raise StorageError(
            "the ranks cannot agree on the query's Iceberg snapshots, since the process group's store does not answer: "
            f"{error}"
        ) from error
    return query if first == pins else query._at(first)
