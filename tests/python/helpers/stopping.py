"""Helpers for tests of checkpoints: loaders that stop, and worker shards read without processes."""

import copy
import itertools
import json

import numpy as np
import pyarrow as pa

import support
import tensorquery as tq

ROWS = 240
SHUFFLES = {
    "off": {},
    "on": {"shuffle": True, "shuffle_buffer_size": 20},
    "default window": {"shuffle": True},
    "buffer only": {"shuffle_buffer_size": 33},
    "global": {"shuffle": "global"},
}


def write_table(folder, *, files=4, row_group=9, rows=ROWS):
    """A table of ids 0 to `rows`, unevenly cut into files."""
    table = pa.table({"id": np.arange(rows), "k": np.arange(rows) % 5})
    rng = np.random.default_rng(5)
    at = [0, *sorted(rng.choice(np.arange(1, rows), files - 1, replace=False).tolist()), rows]
    for number, (start, stop) in enumerate(itertools.pairwise(at)):
        part = table.slice(start, stop - start)
        support.write_parquet(f"{folder}/{number}", part, row_group=row_group)
    return str(folder)


def query_of(folder, where=None):
    """The ids of the table at `folder`, in a session of its own."""
    session = tq.Session()
    session.register_parquet("t", folder)
    return session.sql("SELECT id FROM t" + (f" WHERE {where}" if where else ""))


def loader_of(query, **options):
    """A new loader, as a process that resumes would make it."""
    options = {"rank": 0, "world_size": 1, "batch_size": 7, "split_rows": 9, **options}
    loader, _ = tq.create_dataloader(query, output_format="dict", **options)
    return loader


def resumed(query, state, **options):
    """A new loader that continues from `state`."""
    loader = loader_of(query, **options)
    loader.load_state_dict(state)
    return loader


def ids(batches):
    """A list of ids per batch."""
    return [batch["id"] for batch in batches]


def state_of(loader):
    """The loader's state, through JSON."""
    return json.loads(json.dumps(loader.state_dict()))


def take(loader, count):
    """`count` batches of ids, and the state after them while the iterator still lives."""
    iterator = iter(loader)
    batches = ids(itertools.islice(iterator, count))
    return batches, state_of(loader)


def shards_in_turn(loader):
    """Deliver as torch's DataLoader does with workers, but in this process: quick for many topologies.

    Stands in for ``DataLoader.__iter__``: every worker is a copy of the dataset, asked in turn from worker 0 on.
    """
    workers = []
    for worker in range(loader.num_workers):
        dataset = copy.copy(loader.dataset)
        dataset._state.newest = None
        # Each has its own, as processes do.
        pack = copy.copy(loader.collate_fn)
        workers.append((dataset._sender(worker, loader.num_workers), pack))
    return _in_turn(workers)


def _in_turn(workers):
    while workers:
        for worker in list(workers):
            runs, pack = worker
            try:
                # As torch does with a worker: what comes is made ready to be sent, and received.
                arrive, facts = pack(next(runs)).__reduce__()
                yield arrive(*facts)
            except StopIteration:
                workers.remove(worker)


def possible(rows, world_size, batch_size):
    """Promise 2: whether equal steps are possible."""
    return rows == 0 or (rows >= world_size and (batch_size >= 2 or rows % world_size == 0))
