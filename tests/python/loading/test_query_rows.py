"""Promise 4 (docs/promises.md) for rows by number: `QueryRows` has the rows of the query in the query's order, in every process,
and a row that `trace` names is the row that was delivered."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import tensorquery as tq
from effort import METHODS

ROWS = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of uneven row groups: ids ascend over all of them."""
    folder = tmp_path_factory.mktemp("rows")
    ids = np.arange(ROWS)
    table = pa.table(
        {
            "id": ids,
            "x": np.sqrt(ids).astype("float32"),
            "day": (ids % 7).astype("int8"),
            "word": [f"w{i % 13}" for i in ids],
        }
    )
    for number, (start, end) in enumerate([(0, 330), (330, 331), (331, ROWS)]):
        path = folder / f"{number}.parquet"
        pq.write_table(table.slice(start, end - start), path, row_group_size=100)
    return folder


def query_of(folder, sql="SELECT id, x, day, word FROM t"):
    session = tq.Session()
    session.register_parquet("t", str(folder))
    return session.sql(sql)


def together(batches):
    """The columns of some batches, each as one list."""
    batches = list(batches)
    return {
        name: [value for batch in batches for value in list(batch[name])] for name in batches[0]
    }


def same(found, wanted):
    assert {name: list(values) for name, values in found.items()} == wanted


QUERIES = {
    "table": "SELECT id, x, day, word FROM t",
    "filter": "SELECT id, word FROM t WHERE day < 3",
    "order": "SELECT id, x FROM t ORDER BY day DESC, id",
    "union": "SELECT id, x FROM t WHERE day = 1 UNION ALL SELECT id + 5000, x FROM t",
    "groups": "SELECT word, count(*) AS n, sum(x) AS x FROM t GROUP BY word",
    "join": "SELECT a.id, b.id AS other FROM t AS a JOIN t AS b ON a.id = b.id * 3",
}


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
def test_rows_have_the_order_of_one_rank(folder, sql):
    query = query_of(folder, sql)
    loader, _ = tq.create_dataloader(query, batch_size=64, output_format="numpy")
    wanted = together(loader)
    found = [
        tq.QueryRows(query),
        tq.QueryRows(query, split_rows=90),
        pickle.loads(pickle.dumps(tq.QueryRows(query))),
    ]
    size = query.count()
    numbers = np.random.default_rng(1).integers(-size, size, 300)
    for rows in found:
        assert (len(rows), rows.columns) == (size, list(wanted))
        same(rows.take(range(size)), wanted)
        same(rows.take(numbers), {name: [v[i] for i in numbers] for name, v in wanted.items()})
        same(rows[-7::3], {name: values[-7::3] for name, values in wanted.items()})
        for number in numbers[:5].tolist():
            assert rows[number] == {name: values[number] for name, values in wanted.items()}
        assert rows.__getitems__([3, 3, -1]) == [rows[3], rows[3], rows[size - 1]]
    assert [row[rows.columns[0]] for row in rows] == wanted[rows.columns[0]]


@pytest.mark.parametrize(
    ("workers", "cases"),
    [
        (
            0,
            [
                ({}, 1),
                ({"shuffle": True, "split_rows": 110}, 3),
                ({"shuffle": "global"}, 2),
                ({"sample_weight": "x"}, 2),
                ({"remainder": "pad", "shuffle": True}, 3),
                ({"exclude": [(0, 3, 50)]}, 1),
            ],
        ),
        pytest.param(2, [({"shuffle": "global"}, 1)], marks=pytest.mark.slow),
    ],
)
def test_traced_rows_are_the_rows_of_their_batches(folder, workers, cases):
    """For any order, number of ranks and of workers, and any size of splits: the number of a row is the query's."""
    query = query_of(folder)
    rows = tq.QueryRows(query)
    for options, world_size in cases:
        for rank in range(world_size):
            loader, dataset = tq.create_dataloader(
                query,
                batch_size=70,
                rank=rank,
                world_size=world_size,
                num_workers=workers,
                output_format="numpy",
                **options,
            )
            seen = 0
            for step, batch in enumerate(loader):
                trace = dataset.trace(rank, step, epoch=0)
                same(rows.take(trace.row_numbers), {name: list(v) for name, v in batch.items()})
                assert trace.to_dict()["row_numbers"] == list(trace.row_numbers)
                seen += trace.rows
            assert seen >= ROWS // world_size - 50


def test_every_kind_of_column_has_scalars(tmp_path):
    table = pa.table(
        {
            "flag": [True, False, True],
            "text": ["a", "", "größe"],
            "raw": [b"1", b"", b"\x00"],
            "code": pa.array(["x", "y", "x"]).dictionary_encode(),
            "list": [[1, 2], [], [3]],
            "pair": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
            "inner": [{"a": 1, "b": "p"}, {"a": 2, "b": "q"}, {"a": 3, "b": "r"}],
            "gap": [1, None, 3],
            "left": [0.5, 1.5, 2.5],
            "right": [4.0, 5.0, 6.0],
        }
    )
    session = tq.Session()
    session.register_table("t", table)
    query = session.table("t")
    options = {"nulls": {"gap": "mask"}, "stack": {"both": ["left", "right"]}}
    rows = tq.QueryRows(query, **options)
    for number, wanted in enumerate(table.to_pylist()):
        row = rows[number]
        assert (row["flag"], row["text"], row["raw"], row["code"]) == (
            wanted["flag"],
            wanted["text"],
            wanted["raw"],
            wanted["code"],
        )
        assert row["list"].tolist() == wanted["list"]
        assert (row["pair"].tolist(), row["pair"].dtype) == (wanted["pair"], np.float32)
        assert row["inner"] == wanted["inner"]
        assert row["gap_mask"] == (wanted["gap"] is not None)
        assert row["gap"] == (wanted["gap"] or 0)
        assert row["both"].tolist() == [wanted["left"], wanted["right"]]
        assert np.ndim(row["flag"]) == 0
    taken = rows.take([2, 0])
    assert (taken["text"], taken["both"].shape) == (["größe", "a"], (2, 2))
    with pytest.raises(tq.DataError, match="gap"):
        tq.QueryRows(query, stack=options["stack"]).take([1])
    with pytest.raises(tq.UnsupportedTypeError, match="m"):
        session.register_table(
            "u", pa.table({"m": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8()))})
        )
        tq.QueryRows(session.table("u"))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_workers_map_the_rows_and_are_sent_a_place(folder, method):
    rows = tq.QueryRows(query_of(folder, "SELECT id, x, word FROM t"))
    assert len(pickle.dumps(rows)) < 1500
    loader = DataLoader(rows, batch_size=64, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert torch.cat([batch["id"] for batch in batches]).tolist() == list(range(ROWS))
    assert batches[0]["x"].dtype == torch.float32
    assert batches[1]["word"][0] == f"w{64 % 13}"
    # A sampler of whole batches: one dict of arrays for each, and no dict of single rows.
    sampler = BatchSampler(RandomSampler(rows), 64, drop_last=False)
    whole = DataLoader(
        rows, sampler=sampler, batch_size=None, num_workers=1, multiprocessing_context=method
    )
    ids = torch.cat([batch["id"] for batch in whole]).tolist()
    assert ids != sorted(ids) == list(range(ROWS))


def test_rows_are_written_once_and_checked(folder):
    query = query_of(folder, "SELECT id FROM t WHERE day <> 2")
    rows = tq.QueryRows(query)
    manifest = Path(rows.path) / "manifest.json"
    before = manifest.stat().st_mtime_ns
    _, dataset = tq.create_dataloader(query, batch_size=64, shuffle="global")
    assert dataset.num_rows == len(rows) == len(tq.QueryRows(query))
    assert manifest.stat().st_mtime_ns == before
    [name] = [each for each in os.listdir(rows.path) if each.startswith("rows-")]
    damaged = Path(rows.path) / name
    damaged.chmod(0o600)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    # Whoever has it open reads the old map; a new one is made of the query again.
    assert tq.QueryRows(query)[5]["id"] == rows[5]["id"]
    assert manifest.stat().st_mtime_ns != before
    sent = pickle.loads(pickle.dumps(rows))
    for each in Path(rows.path).iterdir():
        each.unlink()
    with pytest.raises(tq.StorageError, match="there is no stage"):
        sent[0]


def test_hostile_arguments(folder):
    rows = tq.QueryRows(query_of(folder))
    for number in (ROWS, -ROWS - 1, 2**70, -(2**70), np.uint64(2**63 + 1)):
        with pytest.raises(
            IndexError, match=f"row {number} is out of range: the query has 1000 rows"
        ):
            rows[number]
        with pytest.raises(IndexError, match=rf"row {number} "):
            rows.take([number])
    with pytest.raises(IndexError, match="row 1000 "):
        rows.take(np.array([1, 1000, 7], np.uint16))
    assert rows.take(np.array([-1], np.int8))["id"].tolist() == [999]
    assert rows[np.int64(4)]["id"] == rows[torch.tensor(4)]["id"] == 4
    assert rows.take(torch.tensor([4, -1]))["id"].tolist() == [4, 999]
    for empty in ([], (), np.empty(0), range(0), slice(5, 5)):
        taken = rows[empty] if isinstance(empty, slice) else rows.take(empty)
        assert {name: len(values) for name, values in taken.items()} == dict.fromkeys(
            rows.columns, 0
        )
    wrong = {
        "a mask of booleans": np.ones(ROWS, bool),
        "whole numbers, got list of float64": [1.0, 2.0],
        "whole numbers, got list of": ["1"],
        "one dimension, got list of 2": [[1, 2]],
        "one dimension, got int of 0": 3,
        "whole numbers, got list of object": [1, None],
    }
    for message, value in wrong.items():
        with pytest.raises(TypeError, match=message):
            rows.take(value)
    for message, value in {
        "several of them are a list": (1, 2),
        "a column of some rows": "id",
    }.items():
        with pytest.raises(TypeError, match=message):
            rows[value]
    for value in (True, None, 1.5):
        with pytest.raises(TypeError, match="whole numbers|one dimension"):
            rows[value]
    with pytest.raises(tq.ConfigError, match=r"a query that is text needs session="):
        tq.QueryRows("SELECT 1")
    with pytest.raises(tq.ConfigError, match="query must be a Query or SQL, not 5"):
        tq.QueryRows(5)
    known = query_of(folder)
    assert tq.QueryRows("SELECT id FROM t", session=known.session)[3]["id"] == 3
    with pytest.raises(tq.ConfigError, match="another session"):
        tq.QueryRows(known, session=tq.Session())
    with pytest.raises(tq.ConfigError, match="stack"):
        tq.QueryRows(query_of(folder), stack={"y": ["nope"]})
    with pytest.raises(tq.NotShardableError):
        tq.QueryRows(query_of(folder, "SELECT count(*) AS n FROM t"), stage="never")
    empty = tq.QueryRows(query_of(folder, "SELECT id FROM t WHERE id < 0"))
    assert (len(empty), list(empty), empty.take([])["id"].shape) == (0, [], (0,))
    with pytest.raises(IndexError, match="row 0 is out of range: the query has no rows"):
        empty[0]


@pytest.mark.slow
def test_torch_is_not_needed(folder):
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import tensorquery as tq\n"
        "session = tq.Session(); session.register_parquet('t', sys.argv[1])\n"
        "rows = tq.QueryRows(session.sql('SELECT id, x FROM t'))\n"
        "assert rows.take([9, -1])['id'].tolist() == [9, 999], rows\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)
