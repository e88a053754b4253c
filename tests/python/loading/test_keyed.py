"""Promise: `keyed=` packs ids of scalars and lists into one keyed jagged output, row for row, with weights and NULLs, for
numpy, torch and TorchRec, over ranks, workers and resumes."""

import random
import struct
import sys
import types

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash

import support
import tensorquery as tq

ROWS = 300


def rows_of(number):
    """The ids of one row: a scalar that may be NULL, a list with weights, and a pair."""
    shop = None if number % 5 == 0 else number % 11
    items = None if number % 7 == 0 else [number * 3 + at for at in range(number % 4)]
    return {
        "id": number,
        "shop": shop,
        "items": items,
        "scores": None if items is None else [item / 2 for item in items],
        "pair": [number, -number],
    }


TYPES = pa.schema({
    "id": pa.int64(),
    "shop": pa.int16(),
    "items": pa.list_(pa.int64()),
    "scores": pa.list_(pa.float64()),
    "pair": pa.list_(pa.int32(), 2),
})  # fmt: skip
TABLE = pa.Table.from_pylist([rows_of(number) for number in range(ROWS)], TYPES)
KEYED = {"sparse": ["shop", "items", "pair"]}
MASKED = {"shop": "mask", "items": "mask", "scores": "mask"}


def lists_of(found):
    """For each row the ids, or weights, of each key."""
    lengths = np.asarray(found.lengths).reshape(len(found.keys), -1)
    ends = np.cumsum(lengths.reshape(-1))
    cut = np.split(np.asarray(found.values), ends[:-1])
    rows = lengths.shape[1]
    return [
        {key: cut[at * rows + row].tolist() for at, key in enumerate(found.keys)} for row in range(rows)
    ]  # fmt: skip


def wanted_of(number):
    row = rows_of(number)
    shop = [] if row["shop"] is None else [row["shop"]]
    return {"shop": shop, "items": row["items"] or [], "pair": row["pair"]}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = support.write_parquet(tmp_path_factory.mktemp("keyed"), TABLE, files=3, row_group=25)
    session = tq.Session()
    session.register_parquet("t", folder)
    return session


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_each_row_has_its_ids(library):
    batch = tq.to_tensors(TABLE, output_format=library, keyed=KEYED, nulls=MASKED)
    assert list(batch) == ["id", "scores", "scores_mask", "sparse"]
    found = batch["sparse"]
    assert type(found) is tq.KeyedJagged
    assert found.keys == ["shop", "items", "pair"]
    assert found.weights is None
    assert str(found.values.dtype).endswith("int64")
    assert str(found.lengths.dtype).endswith("int64")
    assert found.lengths.shape == (3 * ROWS,)
    assert lists_of(found) == [wanted_of(number) for number in range(ROWS)]


def test_weights_stand_beside_their_ids():
    keyed = {"sparse": {"items": "scores"}}
    for library in ("torch", "numpy"):
        batch = tq.to_tensors(TABLE, output_format=library, keyed=keyed, nulls=MASKED)
        found = batch["sparse"]
        assert {"scores", "items", "items_mask", "scores_mask"}.isdisjoint(batch)
        assert str(found.weights.dtype).endswith("float32")
        np.testing.assert_array_equal(np.asarray(found.weights), np.asarray(found.values) / 2)
    scalar = pa.table({"a": [1, 2], "b": [3, 4], "wa": [0.5, 1.5], "wb": [2, 3]})
    found = tq.to_tensors(scalar, keyed={"k": {"a": "wa", "b": "wb"}})["k"]
    assert found.values.tolist() == [1, 2, 3, 4]
    assert found.weights.tolist() == [0.5, 1.5, 2, 3]


def test_a_null_is_an_error_unless_the_policy_says_otherwise():
    with pytest.raises(tq.DataError, match="shop"):
        tq.to_tensors(TABLE, keyed=KEYED)
    filled = tq.to_tensors(TABLE, keyed={"k": ["shop"]}, nulls={**MASKED, "shop": -1})["k"]
    assert filled.values.tolist() == [-1 if n % 5 == 0 else n % 11 for n in range(ROWS)]
    assert filled.lengths.tolist() == [1] * ROWS


def test_a_column_that_is_called_like_a_mask_is_no_mask():
    schema = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("a_mask", pa.bool_(), nullable=False)]
    )
    table = pa.table([[1, 2], [True, False]], schema=schema)
    batch = tq.to_tensors(table, keyed={"k": ["a"]}, nulls="mask")
    assert batch["k"].lengths.tolist() == [1, 1]
    assert batch["a_mask"].tolist() == [True, False]


def test_no_rows_and_no_ids():
    for table in (TABLE[:0], TABLE[:1]):
        found = tq.to_tensors(table, keyed={"k": ["shop", "items"]}, nulls=MASKED)["k"]
        assert found.values.shape == (0,)
        assert found.lengths.tolist() == [0] * (2 * len(table))


REFUSED = [
    ({"keyed": ["shop"]}, "keyed must be a dict by output name"),
    ({"keyed": {"k": "shop"}}, "must be a list of columns"),
    ({"keyed": {"k": {"shop", "id"}}}, "must be a list of columns"),
    ({"keyed": {"k": []}}, "names no column"),
    ({"keyed": {"k": [1]}}, "columns must be strings, not 1"),
    ({"keyed": {"k": {"shop": 1}}}, "columns must be strings, not 1"),
    ({"keyed": {1: ["shop"]}}, "names of outputs must be strings, not 1"),
    ({"keyed": {"k": ["id", "id"]}}, "names a column twice"),
    ({"keyed": {"k": {"items": "scores", "id": None}}}, "weights for some columns and none for ['id']"),
    ({"keyed": {"k": ["shops"]}}, "'shops' is no column of the query, or one that is packed into a stack; did you mean 'shop'?"),
    ({"keyed": {"k": ["shop_mask"]}, "nulls": MASKED}, "'shop_mask' is no column"),
    ({"keyed": {"k": ["id"]}, "stack": {"x": ["id"]}}, "'id' is no column of the query, or one that is packed"),
    ({"keyed": {"id": ["pair"]}}, "two outputs would be named 'id'"),
    ({"keyed": {"k": {"id": "id"}}}, "uses ['id'] as ids and as weights"),
    ({"keyed": {"k": ["scores"]}, "nulls": MASKED}, "ids must be integers of up to 64 bits with a sign, and column 'scores' holds float64"),
    ({"keyed": {"k": ["items"]}, "pad": {"items": 0}, "nulls": MASKED}, "leave it out of pad"),
    ({"keyed": {"k": ["id"]}, "output_format": "arrow"}, "only for output_format 'torch', 'numpy' and 'kjt'"),
    ({"keyed": {"k": {"items": "pair"}}, "nulls": MASKED}, "row 0 of the batch has 0 ids in column 'items' and 2 weights in 'pair'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_are_refused_by_name(options, message):
    with pytest.raises(tq.TensorQueryError) as caught:
        tq.to_tensors(TABLE, **options)
    assert message in str(caught.value)


def test_texts_are_refused_with_the_function_that_hashes_them():
    for table in (pa.table({"s": ["a"]}), pa.table({"s": pa.array(["a"]).dictionary_encode()})):
        with pytest.raises(tq.UnsupportedTypeError, match=r"hash64\(s, 0, 1000000\)"):
            tq.to_tensors(table, keyed={"k": ["s"]})
    with pytest.raises(tq.UnsupportedTypeError, match=r"CAST\(u AS BIGINT\)"):
        tq.to_tensors(pa.table({"u": pa.array([1], pa.uint64())}), keyed={"k": ["u"]})


# ------------------------------------------------------------------------------------------------
# Loaders

OPTIONS = {"keyed": KEYED, "nulls": MASKED, "batch_size": 16, "shuffle": True}


def collected(loader, most=None):
    """The rows of a loader by id; each once."""
    found = {}
    for at, batch in enumerate(loader, 1):
        for number, row in zip(batch["id"].tolist(), lists_of(batch["sparse"]), strict=True):
            assert number not in found
            found[number] = row
        if at == most:
            break
    return found


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks_and_workers_deliver_each_row_with_its_ids(session, workers):
    found = {}
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            "SELECT * FROM t", session=session, rank=rank, world_size=2, num_workers=workers, **OPTIONS
        )  # fmt: skip
        mine = collected(loader)
        assert found.keys().isdisjoint(mine)
        found |= mine
    assert found == {number: wanted_of(number) for number in range(ROWS)}


@pytest.mark.parametrize("seed", range(6))
def test_a_resume_on_another_topology_delivers_the_rest(session, seed):
    rng = random.Random(seed)
    before, after = rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 3, 5])
    options = OPTIONS | {
        "batch_size": rng.choice([3, 7, 16]),
        "shuffle": (False, True, "global")[seed % 3],
        "keyed": {"sparse": ["shop", "items", "pair", "tags"]},
    }
    query = "SELECT *, hash64(items, 3, 50) AS tags FROM t WHERE bucketize(id, [20, 40]) <> 1"
    options["nulls"] = {**MASKED, "tags": "mask"}

    def loaders(world_size):
        ranks = ({"rank": rank, "world_size": world_size} for rank in range(world_size))
        return [
            tq.create_dataloader(query, session=session, **options, **rank)[0] for rank in ranks
        ]

    steps = rng.randrange(1, 6)
    found, states = {}, []
    for loader in loaders(before):
        found |= disjoint(found, collected(loader, steps))
        states.append(loader.state_dict())
    state = tq.merge_state_dicts(states)
    for loader in loaders(after):
        loader.load_state_dict(state)
        found |= disjoint(found, collected(loader))
    assert found == {
        number: wanted_of(number) | {"tags": [hashed(item) for item in wanted_of(number)["items"]]}
        for number in range(ROWS)
        if not 20 < number <= 40
    }


def disjoint(found, more):
    assert found.keys().isdisjoint(more)
    return more


def hashed(number):
    return xxhash.xxh64_intdigest(struct.pack("<q", number), 3) % 50


def test_a_state_of_other_columns_is_refused(session):
    states = []
    for keyed in ({"sparse": ["shop"]}, {"sparse": ["shop", "items"]}):
        loader, _ = tq.create_dataloader(
            "SELECT * FROM t", session=session, **OPTIONS | {"keyed": keyed}
        )
        collected(loader, 1)
        states.append(loader.state_dict())
    with pytest.raises(tq.CheckpointMismatchError, match="decimal, keyed"):
        loader.load_state_dict(states[0])


# ------------------------------------------------------------------------------------------------
# TorchRec: itself where it is installed, else a class with the arguments of its documentation


class Documented:
    """The part of TorchRec's `KeyedJaggedTensor` that its documentation promises."""

    def __init__(self, keys, values, weights=None, lengths=None, offsets=None, stride=None):
        assert lengths.numel() % len(keys) == 0
        assert values.is_meta or values.numel() == int(lengths.sum())
        self._keys, self._values, self._weights, self._lengths = keys, values, weights, lengths

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def weights_or_none(self):
        return self._weights

    def to(self, device, non_blocking=False):
        values, lengths = (tensor.to(device) for tensor in (self._values, self._lengths))
        weights = None if self._weights is None else self._weights.to(device)
        return Documented(self._keys, values, weights, lengths)


@pytest.fixture
def torchrec(monkeypatch):
    name = "torchrec.sparse.jagged_tensor"
    try:
        return __import__(name, fromlist=["KeyedJaggedTensor"]).KeyedJaggedTensor
    except (ImportError, OSError):
        module = types.ModuleType(name)
        module.KeyedJaggedTensor = Documented
        for parent in ("torchrec", "torchrec.sparse"):
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        monkeypatch.setitem(sys.modules, name, module)
        return Documented


def test_the_format_of_torchrec(torchrec):
    plain = tq.to_tensors(TABLE, keyed={"k": {"items": "scores"}, **KEYED}, nulls=MASKED)
    batch = tq.to_tensors(
        TABLE, output_format="kjt", keyed={"k": {"items": "scores"}, **KEYED}, nulls=MASKED
    )
    assert list(batch) == list(plain) == ["id", "k", "sparse"]
    for name in ("k", "sparse"):
        found = batch[name]
        assert type(found) is torchrec
        assert found.keys() == plain[name].keys
        assert torch.equal(found.values(), plain[name].values)
        assert torch.equal(found.lengths(), plain[name].lengths)
        weights = found.weights_or_none()
        assert (weights is None) == (plain[name].weights is None)
    assert torch.equal(batch["k"].weights_or_none(), plain["k"].weights)


def test_batches_of_torchrec_go_to_a_device(torchrec, session):
    loader, _ = tq.create_dataloader(
        "SELECT * FROM t", session=session, output_format="kjt", device="meta", **OPTIONS
    )
    batch = next(iter(loader))
    assert type(batch["sparse"]) is torchrec
    assert batch["sparse"].values().device.type == "meta"


def test_without_torchrec_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec.sparse.jagged_tensor", None)
    with pytest.raises(ImportError, match="pip install torchrec fbgemm-gpu"):
        tq.to_tensors(TABLE, output_format="kjt", keyed=KEYED, nulls=MASKED)
    with pytest.raises(tq.ConfigError, match="needs keyed=, which says the columns"):
        tq.to_tensors(TABLE, output_format="kjt")
