"""Random tables in every format, and what shards deliver of them, for the tests of the promises.

Functions that worker processes run live here too: spawn imports their module.
"""

import bz2
import contextlib
import decimal
import gzip
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time as time_module
from collections import Counter
from datetime import date, datetime, time, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import torch

import tensorquery as tq

# ------------------------------------------------------------------------------------------------
# Random tables. Column `id` is unique and ascending, `k` is a small key, `v` has nulls and NaN.

_WORDS = ["", "a", "b,c", 'say "hi"', "line\nbreak", "größe", "x" * 40, "NULL"]


def _maybe(rng, values, nulls):
    return [None if rng.random() < nulls else value for value in values]


def _strings(rng, rows):
    return [_WORDS[i] for i in rng.integers(len(_WORDS), size=rows)]


def _lists(rng, rows):
    return [rng.integers(-9, 9, size=rng.integers(0, 4)).tolist() for _ in range(rows)]


COLUMNS = {
    "i8": (pa.int8(), lambda rng, n: rng.integers(-128, 128, n).tolist()),
    "i32": (pa.int32(), lambda rng, n: rng.integers(-(2**31), 2**31, n).tolist()),
    "u64": (pa.uint64(), lambda rng, n: rng.integers(0, 2**64, n, dtype=np.uint64).tolist()),
    "f32": (pa.float32(), lambda rng, n: rng.normal(size=n).astype(np.float32).tolist()),
    "flag": (pa.bool_(), lambda rng, n: (rng.random(n) < 0.5).tolist()),
    "s": (pa.string(), _strings),
    "big": (pa.large_string(), _strings),
    "raw": (pa.binary(), lambda rng, n: [rng.bytes(int(rng.integers(0, 9))) for _ in range(n)]),
    "code": (pa.dictionary(pa.int32(), pa.string()), _strings),
    "day": (
        pa.date32(),
        lambda rng, n: [date(2026, 1, 1) + timedelta(int(d)) for d in rng.integers(0, 99, n)],
    ),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        lambda rng, n: [
            datetime(2026, 1, 1) + timedelta(seconds=int(s)) for s in rng.integers(0, 10**6, n)
        ],
    ),
    "clock": (
        pa.time64("us"),
        lambda rng, n: [time(int(h), int(h) % 60) for h in rng.integers(0, 24, n)],
    ),
    "price": (
        pa.decimal128(9, 2),
        lambda rng, n: [decimal.Decimal(int(c)).scaleb(-2) for c in rng.integers(0, 10**6, n)],
    ),
    "list": (pa.list_(pa.int32()), _lists),
    "vector": (
        pa.list_(pa.float32(), 3),
        lambda rng, n: rng.random((n, 3), dtype=np.float32).tolist(),
    ),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        lambda rng, n: [{"x": int(x), "y": _WORDS[x]} for x in rng.integers(0, len(_WORDS), n)],
    ),
}


def random_table(rng, rows, columns=(), *, nulls=0.1):
    """`rows` rows of id, k, v and the named columns of `COLUMNS`."""
    v = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows))
    data = {
        "id": pa.array(range(rows), pa.int64()),
        "k": pa.array(rng.integers(0, 7, rows), pa.int32()),
        "v": pa.array(_maybe(rng, v.tolist(), nulls), pa.float64()),
    }
    for name in columns:
        kind, make = COLUMNS[name]
        data[name] = pa.array(_maybe(rng, make(rng, rows), nulls), kind)
    return pa.table(data)


def cut(table, parts, rng=None):
    """`table` in `parts` consecutive tables: even ones, or where `rng` says; some may be empty."""
    rows = table.num_rows
    if rng is None:
        at = [rows * part // parts for part in range(parts + 1)]
    else:
        at = [0, *sorted(rng.integers(0, rows + 1, parts - 1).tolist()), rows]
    return [table.slice(start, stop - start) for start, stop in itertools.pairwise(at)]


def write_parquet(folder, table, *, files=1, row_group=None, rng=None, **options):
    """Write `table` as `files` files; with `rng`, of random lengths and row-group sizes."""
    os.makedirs(folder, exist_ok=True)
    for number, part in enumerate(cut(table, files, rng)):
        size = row_group or (None if rng is None else int(rng.integers(1, part.num_rows + 2)))
        pq.write_table(part, f"{folder}/{number:03}.parquet", row_group_size=size, **options)
    return str(folder)


def write_csv(folder, table, *, files=1, compress=None):
    """Write `table` as CSV; `compress` is None, "gz" or "bz2"."""
    os.makedirs(folder, exist_ok=True)
    for number, part in enumerate(cut(table, files)):
        sink = pa.BufferOutputStream()
        pa.csv.write_csv(part, sink)
        _write_text(f"{folder}/{number:03}.csv", sink.getvalue().to_pybytes(), compress)
    return str(folder)


def write_json(folder, table, *, files=1, compress=None, array=False):
    """Write `table` as JSON, one object per line or one array per file."""
    os.makedirs(folder, exist_ok=True)
    for number, part in enumerate(cut(table, files)):
        rows = part.to_pylist()
        text = json.dumps(rows) if array else "".join(json.dumps(row) + "\n" for row in rows)
        _write_text(f"{folder}/{number:03}.json", text.encode(), compress)
    return str(folder)


def write_arrow(folder, table, *, files=1):
    """Write `table` as Arrow IPC files."""
    os.makedirs(folder, exist_ok=True)
    for number, part in enumerate(cut(table, files)):
        pa.feather.write_feather(part, f"{folder}/{number:03}.arrow", compression="uncompressed")
    return str(folder)


def write_orc(folder, table, *, files=1, stripe=100):
    """Write `table` as ORC files with stripes of about `stripe` rows."""
    os.makedirs(folder, exist_ok=True)
    for number, part in enumerate(cut(table, files)):
        pa.orc.write_table(
            part,
            f"{folder}/{number:03}.orc",
            batch_size=stripe,
            stripe_size=1,
            dictionary_key_size_threshold=1.0,
        )
    return str(folder)


def _write_text(path, data, compress):
    packed = {None: bytes, "gz": gzip.compress, "bz2": bz2.compress}[compress](data)
    with open(path + (f".{compress}" if compress else ""), "wb") as file:
        file.write(packed)


# ------------------------------------------------------------------------------------------------
# Rows of shards.


def rows_of(tables):
    """The rows of Arrow tables or batches as a multiset: repr, since NaN is not equal to itself."""
    return Counter(repr(sorted(row.items())) for table in tables for row in table.to_pylist())


def read_shards(query, world_size, workers=0, **options):
    """The Arrow batches of every shard: a list per (rank, worker).

    A worker is a shard of its own, which needs no process to be read. Equal steps have tests of their own.
    """
    options.setdefault("remainder", "uneven")
    shards = []
    for rank in range(world_size):
        dataset = tq.QueryDataset(
            query, rank=rank, world_size=world_size, output_format="arrow", **options
        )
        for worker in range(max(1, workers)):
            shards.append(list(dataset._iterate(worker, workers)))
    return shards


def assert_exactly_once(query, shards, batch_size):
    """The shards hold each row of the query's result once, in exact batches."""
    assert rows_of(batch for shard in shards for batch in shard) == rows_of([query.to_arrow()])
    for shard in shards:
        sizes = [batch.num_rows for batch in shard]
        assert all(size == batch_size for size in sizes[:-1]), sizes
        assert all(1 <= size <= batch_size for size in sizes[-1:]), sizes


def ids_of(batches):
    """Column `id` of every batch, a list per batch, whatever the output format."""
    return [
        (
            batch["id"].to_pylist()
            if isinstance(batch, pa.RecordBatch)
            else list(map(int, batch["id"]))
        )
        for batch in batches
    ]


def flat(lists):
    """One list of many."""
    return [item for items in lists for item in items]


# ------------------------------------------------------------------------------------------------
# A server that counts.


class Traffic:
    """The ranges that the server sent, by file."""

    def __init__(self, log):
        self._log = log
        self._seen = 0

    def take(self, agent=None):
        """(name, start, stop) of each answer with a body since the last call; with `agent`, of requests of that User-Agent."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        new, self._seen = map(str.split, lines[self._seen :]), len(lines)
        ranges = [
            (name, int(start), int(stop))
            for _, name, start, stop, asked_by in new
            if agent in (None, asked_by)
        ]
        return [(name, start, stop) for name, start, stop in ranges if stop > start]


def in_a_fork(work, seconds=30):
    """The repr of `work`'s result, or of its exception, in a forked process."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(work())
        except BaseException as error:
            said = repr(error)
        os.write(into, said.encode())
        os._exit(0)
    os.close(into)
    try:
        ready, _, _ = select.select([out], [], [], seconds)
        assert ready, "the forked process hangs"
        return os.read(out, 100_000).decode()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(out)


@contextlib.contextmanager
def alarm(seconds):
    """A hang within this fails the test."""

    def ring(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def serve(root, log, brake=None):
    """The base URL of a server over `root`; silent while the file `brake` exists, see range_server.py."""
    script = Path(__file__).with_name("range_server.py")
    command = [sys.executable, *map(str, (script, root, log)), *([str(brake)] if brake else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


# ------------------------------------------------------------------------------------------------
# Functions for worker processes.


def with_pid(batch):
    """A transform that says which process it ran in."""
    return {**batch, "pid": torch.tensor(os.getpid())}


def ids_and_pid(batch):
    """A collate_fn: the ids and the process."""
    return batch["id"].tolist(), os.getpid()


def fail(batch):
    """A transform that fails."""
    return 1 // 0


def describe(batch):
    """A transform: the kind and the content of every value, to compare across processes."""
    return {name: _described(value) for name, value in batch.items()}


def _described(value):
    if isinstance(value, dict):
        return describe(value)
    if isinstance(value, tq.Encoded):
        return ["Encoded", _described(value.codes), value.categories]
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return ["nested", str(value.dtype), [row.tolist() for row in value.unbind()]]
        return [str(value.dtype), list(value.shape), repr(value.tolist())]
    return [type(value).__name__, value]


def second_starts_late(worker):
    """A worker_init_fn: worker 0 has delivered batches before worker 1 begins."""
    time_module.sleep(worker)


class LastFirst:
    """A split strategy: shards in turn, from the last split to the first; another deal every epoch."""

    def generate(self, splits, num_shards, epoch):
        """See `tensorquery.SplitStrategy`."""
        dealt = list(reversed(splits))
        return [dealt[(shard + epoch) % num_shards :: num_shards] for shard in range(num_shards)]
