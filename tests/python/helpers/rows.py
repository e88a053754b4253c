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


def assert_same(query, expected, **kwargs):
    """Assert that the engine's own rows, the rows of all shards, and the count are the expected ones."""
    assert query.to_arrow().to_pylist() == expected
    assert multiset(sharded(query, **kwargs)) == multiset(expected)
    assert query.count() == len(expected)


def read_both_ways(path, query="SELECT * FROM t", **options):
    """The rows of a query over a Parquet table `t`, read in one piece, and by a loader, which must give the same."""
    session = tq.Session()
    session.register_parquet("t", str(path), **options)
    rows = session.sql(query).to_arrow().to_pylist()
    loader, _ = tq.create_dataloader(query, session=session, batch_size=7, output_format="arrow")
    assert [row for batch in loader for row in batch.to_pylist()] == rows
    return rows


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
