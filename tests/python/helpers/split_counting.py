"""Rows per split: as the package counts them, and as reading finds them."""

import pyarrow as pa

from tensorquery.distributed.topology import Topology
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.row_counts import split_counts
from tensorquery.sharding.shards import plan_splits

ALONE = Topology(0, 1)


def plan_of(query, rows=None):
    return plan_splits(query._core, "128MiB", rows)


def count(plan, **options):
    return split_counts(plan, **{"topology": ALONE, "threads": 2, **options})


def executed(plan):
    """Rows of every split by reading it."""
    deal = Deal(1000, 0, False, None, "uneven", None, "round_robin")
    epochs = Epochs(plan, deal, Topology(0, max(1, plan.num_splits)), list, None)
    shards = epochs.all_shards(0, 0)
    found = []
    for split in range(plan.num_splits):
        stream, rows = plan.stream(shards, split, 0, [], 1, None), 0
        while (batch := stream.next()) is not None:
            rows += pa.record_batch(batch).num_rows
        found.append(rows)
    return found
