"""Rows of a loader over several ranks, and their comparison as multisets."""

import collections
import math

import tensorquery as tq


def sharded(query=None, *, world_size=2, batch_size=100, **kwargs):
    """All rows of a loader, every rank in turn, as dicts. Equal steps have tests of their own."""
    kwargs.setdefault("remainder", "uneven")
    rows = []
    for rank in range(world_size):
        loader, _ = tq.create_dataloader(
            query,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            output_format="arrow",
            **kwargs,
        )
        for batch in loader:
            rows += batch.to_pylist()
    return rows


def multiset(rows):
    """Rows as a multiset; NaN equals NaN, and nested values can be counted."""
    return collections.Counter(repr(_plain(row)) for row in rows)


def _plain(value):
    match value:
        case float() if math.isnan(value):
            return "nan"
        case dict():
            return sorted((key, _plain(item)) for key, item in value.items())
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value
