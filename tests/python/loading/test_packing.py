"""Promises 1, 2, 4 and 5 (docs/promises.md) for packs and batches by tokens: each token of the query comes exactly once, on every
topology and after every resume, in equal steps, and packs are the same in every process."""

import json
import threading
from itertools import chain, islice, pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorquery as tq
from effort import cases
from tensorquery.loading.packed_batches import ReadPacks
from tensorquery.sharding.packing import permuted, plan_batches, plan_packs

DOCUMENTS = 300
LENGTH = 64


@pytest.fixture(scope="module")
def documents():
    """Documents of 0 to 200 tokens; the tokens of document i are 1000 * i and up."""
    sizes = np.minimum(np.random.default_rng(5).geometric(1 / 30, DOCUMENTS), 200)
    sizes[[3, 50]] = 0
    return [1000 * number + np.arange(size) for number, size in enumerate(sizes)]


@pytest.fixture(scope="module")
def query(documents, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORQUERY_STAGES", str(tmp_path_factory.mktemp("stages")))
        table = pa.table(
            {
                "id": np.arange(DOCUMENTS),
                "tokens": pa.array([each.astype("int32") for each in documents]),
                "labels": pa.array([-each for each in documents]),
                "prompt": pa.array(
                    [(np.arange(len(each)) > 2).astype("int8") for each in documents]
                ),
                "word": [f"w{number}" for number in range(DOCUMENTS)],
                "tags": [[number] * (number % 3) for number in range(DOCUMENTS)],
                "size": [len(each) for each in documents],
            }
        )
        session = tq.Session()
        session.register_table("documents", table)
        yield session.sql("SELECT * FROM documents")


def packs_of(query, columns=("tokens",), batch_size=3, **options):
    pack = {
        key: options.pop(key)
        for key in ("window", "long", "pad", "loss", "multiple")
        if key in options
    }
    return tq.create_dataloader(
        query,
        pack=tq.Pack(columns=columns, length=LENGTH, **pack),
        batch_size=batch_size,
        **options,
    )


def tokens_in(batches):
    return [
        token for batch in batches for token in batch["tokens"][batch["document_ids"] >= 0].tolist()
    ]


def same(one, other):
    return one.keys() == other.keys() and all(
        plain(value) == plain(other[name]) for name, value in one.items()
    )


def plain(value):
    if not torch.is_tensor(value):
        return value
    return [part.tolist() for part in value.unbind()] if value.is_nested else value.tolist()


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 16),
    st.integers(1, 20),
    st.sampled_from(["split", "truncate"]),
    st.one_of(st.none(), st.integers(0, 99)),
)
@settings(max_examples=cases(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_has_each_token_once_and_no_two_packs_that_fit_into_one(
    sizes, length, window, long, seed
):
    lengths = np.array(sizes, np.int64)
    order = np.arange(len(sizes)) if seed is None else permuted(len(sizes), seed)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    pack = tq.Pack(columns=["t"], length=length, window=window, long=long)
    plan = plan_packs(lengths, order, pack)
    kept = np.minimum(lengths, length) if long == "truncate" else lengths
    found = sorted(
        (row, start + at)
        for row, start, size in zip(*(each.tolist() for each in plan[:3]), strict=True)
        for at in range(size)
    )
    assert found == [(row, at) for row, size in enumerate(kept.tolist()) for at in range(size)]
    filled = [plan.lengths[a:b].sum() for a, b in pairwise(plan.ends)]
    assert all(0 < fill <= length for fill in filled)
    if window >= len(sizes) and len(filled) > 1:
        # What any-fit algorithms promise, and so best-fit.
        assert sum(sorted(filled)[:2]) > length


@given(st.lists(st.integers(0, 9), max_size=40), st.booleans(), st.booleans(), st.integers(1, 7))
@settings(max_examples=cases(10), deadline=None)
def test_batches_by_tokens_have_each_row_once_within_the_budget(sizes, sorts, padded, most_rows):
    lengths = np.array(sizes, np.int64)
    rows, ends = plan_batches(
        lengths, np.arange(len(sizes)), 20, most_rows, sorts=sorts, padded=padded
    )
    assert sorted(rows.tolist()) == list(range(len(sizes)))
    for begin, end in pairwise(ends):
        own = lengths[rows[begin:end]]
        assert 0 < len(own) <= most_rows
        assert (len(own) * own.max() if padded else own.sum()) <= 20


def test_a_batch_of_packs_says_where_its_documents_lie(documents, query):
    loader, dataset = packs_of(
        query,
        ["tokens", "labels", "prompt"],
        loss="prompt",
        pad={"labels": -100, "tokens": 7},
        output_format="numpy",
    )
    seen = 0
    for batch in loader:
        packs = len(batch["tokens"])
        assert "prompt" not in batch
        flat = {
            name: batch[name].reshape(-1)
            for name in ("tokens", "labels", "position_ids", "document_ids", "loss_mask")
        }
        ends = batch["cu_seqlens"]
        assert ends.dtype == np.int32
        assert (ends[0], ends[-1]) == (0, packs * LENGTH)
        assert batch["max_seqlen"] == np.diff(ends).max() <= LENGTH
        for begin, end in pairwise(ends):
            [document] = set(flat["document_ids"][begin:end].tolist())
            if document < 0:
                assert set(flat["tokens"][begin:end].tolist()) == {7}
                assert set(flat["labels"][begin:end].tolist()) == {-100}
                assert not flat["loss_mask"][begin:end].any()
                continue
            row = batch["document_rows"][document]
            tokens = flat["tokens"][begin:end]
            start = tokens[0] - 1000 * row
            assert tokens.tolist() == documents[row][start : start + end - begin].tolist()
            assert (flat["labels"][begin:end] == -tokens).all()
            assert flat["position_ids"][begin:end].tolist() == list(range(end - begin))
            mask = (np.arange(start, start + end - begin) > 2) & (np.arange(end - begin) > 0)
            assert (flat["loss_mask"][begin:end] == mask).all()
            assert batch["id"][document] == row
            assert batch["word"][document] == f"w{row}"
            tags = batch["tags"]
            assert tags.values[tags.offsets[document] : tags.offsets[document + 1]].tolist() == [
                row
            ] * (row % 3)
            seen += end - begin
    assert seen == dataset.packing.tokens == sum(map(len, documents))
    assert (dataset.packing.empty, dataset.packing.documents) == (2, DOCUMENTS - 2)
    assert dataset.packing.fill > 0.97


KINDS = {
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "moments": pa.timestamp("us"),
}


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
@pytest.mark.parametrize("kind", KINDS)
def test_packs_of_lists_alone_are_those_beside_other_columns(
    tmp_path, monkeypatch, documents, kind, make
):
    """Plain numbers have a shorter way if there is nothing else; it leads to the same packs."""
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    values = [(each % 100 % (2 if kind == "bool" else 101)).tolist() for each in documents]
    column = pa.array(values, make(pa.int64())).cast(make(KINDS[kind]))
    session = tq.Session()
    session.register_table("d", pa.table({"tokens": column, "id": range(DOCUMENTS)}))
    gathered, seen = ReadPacks._gathered, []

    def watched(self, *arguments):
        seen.append(gathered(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(ReadPacks, "_gathered", watched)
    options = {
        "rank": 0,
        "world_size": 1,
        "output_format": "numpy",
        "pad": {} if kind in ("bool", "moments") else {"tokens": 100},
    }
    alone, beside = (
        list(packs_of(session.sql(sql), **options)[0])
        for sql in ("SELECT tokens FROM d", "SELECT * FROM d")
    )
    shorter = [found is not None for found in seen]
    assert shorter == [kind not in ("bool", "moments")] * len(alone) + [False] * len(beside)
    for one, other in zip(alone, beside, strict=True):
        assert one.keys() == other.keys() - {"id"}
        for name, found in one.items():
            np.testing.assert_array_equal(found, other[name])
            assert getattr(found, "dtype", None) == getattr(other[name], "dtype", None)


def test_numbers_that_are_null_are_filled_in_packs_of_lists_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    session = tq.Session()
    session.register_table("d", pa.table({"x": [[1.5, None], [2.5], [None]]}))
    loader, _ = tq.create_dataloader(
        session.sql("SELECT x FROM d"),
        pack=tq.Pack(columns=["x"], length=3),
        nulls="nan",
        output_format="numpy",
    )
    found = np.concatenate([batch["x"].reshape(-1) for batch in loader])
    assert sorted(found[~np.isnan(found)].tolist()) == [0.0, 0.0, 1.5, 2.5]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"window": 40, "shuffle": "global"}], ids=str
)
def test_every_token_comes_once_in_equal_steps_and_after_resumes_on_any_topology(
    documents, query, options
):
    wanted = sorted(np.concatenate(documents).tolist())
    ranks = [packs_of(query, rank=rank, world_size=2, **options)[0] for rank in range(2)]
    batches = [list(loader) for loader in ranks]
    assert len(batches[0]) == len(batches[1]) == len(ranks[0])
    assert sorted(tokens_in(batches[0] + batches[1])) == wanted

    at = len(batches[0]) // 2
    loaders = [packs_of(query, rank=rank, world_size=2, **options)[0] for rank in range(2)]
    for loader in loaders:
        iterator = iter(loader)
        for _ in range(at):
            next(iterator)
    state = json.loads(json.dumps(loaders[0].state_dict()))
    again, _ = packs_of(query, rank=1, world_size=2, **options)
    again.load_state_dict(state)
    rest = list(again)
    assert len(rest) == len(batches[1]) - at
    assert all(same(one, other) for one, other in zip(rest, batches[1][at:], strict=True))

    done = tokens_in(batches[0][:at] + batches[1][:at])
    others = [
        packs_of(query, rank=rank, world_size=3, batch_size=2, **options)[0] for rank in range(3)
    ]
    for loader in others:
        loader.load_state_dict(state)
    rest = [list(loader) for loader in others]
    assert len({len(each) for each in rest}) == 1
    assert sorted(done + tokens_in(chain(*rest))) == wanted


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(0, 2)), max_size=3),
    st.booleans(),
    st.integers(0, 3),
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_chain_of_topologies_delivers_every_token_once(documents, query, runs, shuffle, epoch):
    """Each run: its ranks, its packs per batch, and the steps after which it is left, before the end of the epoch; the last one ends it."""
    tokens, state = [], None
    for ranks, batch_size, steps in [*runs, (2, 3, None)]:
        loaders = [
            packs_of(query, batch_size=batch_size, shuffle=shuffle, rank=rank, world_size=ranks)[0]
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is None:
                loader.set_epoch(epoch)
            else:
                loader.load_state_dict(state)
        taken = [list(islice(loader, steps)) for loader in loaders]
        assert len({len(batches) for batches in taken}) == 1
        tokens += tokens_in(chain(*taken))
        state = loaders[0].state_dict()
    assert len(tokens) == sum(map(len, documents))
    assert set(tokens) == {*np.concatenate(documents).tolist()}


@pytest.mark.slow
def test_workers_and_threads_deliver_the_same_packs(query):
    plain = list(packs_of(query, ["tokens", "labels"])[0])
    threads, _ = packs_of(
        query, ["tokens", "labels"], transform=lambda batch: batch, transform_threads=2
    )
    assert all(same(one, other) for one, other in zip(threads, plain, strict=True))
    workers, _ = packs_of(query, ["tokens", "labels"], num_workers=2)
    assert sorted(tokens_in(workers)) == sorted(tokens_in(plain))


def test_truncation_is_counted_and_packs_can_be_made_a_multiple(documents, query):
    loader, dataset = packs_of(query, long="truncate", multiple=7, batch_size=1)
    wanted = sorted(token for each in documents for token in each[:LENGTH].tolist())
    assert sorted(tokens_in(loader)) == wanted
    assert dataset.packing.truncated == sum(map(len, documents)) - len(wanted) > 0
    assert dataset.packing.packs % 7 == 0
    loader, dataset = packs_of(query, multiple=7, batch_size=1, rank=6, world_size=7)
    assert len(list(loader)) == dataset.packing.packs // 7
    with pytest.raises(tq.ConfigError, match=r"multiple=1000000: the \d+ packs have \d+ documents"):
        packs_of(query, multiple=1_000_000)


@pytest.mark.parametrize(
    "options",
    [{}, {"bucket_by": "tokens", "pad": {"tokens": -1}}, {"bucket_by": "size", "shuffle": True}],
    ids=str,
)
def test_batches_by_tokens_have_every_row_once_and_go_on_after_a_resume(documents, query, options):
    narrow = query.select(["id", "tokens", "size"])
    loader, dataset = tq.create_dataloader(
        narrow, batch_tokens=400, batch_size=50, output_format="numpy", **options
    )
    batches = list(loader)
    assert len(batches) == len(loader) == dataset.packing.packs
    assert sorted(number for batch in batches for number in batch["id"].tolist()) == list(
        range(DOCUMENTS)
    )
    for batch in batches:
        assert len(batch["id"]) <= 50
        assert batch["size"].sum() <= 400
        if "pad" in options:
            assert batch["tokens"].size <= 400
        else:
            wanted = [token for number in batch["id"] for token in documents[number].tolist()]
            assert batch["tokens"].values.tolist() == wanted
    resumed, _ = tq.create_dataloader(
        narrow, batch_tokens=400, batch_size=50, output_format="numpy", **options
    )
    iterator = iter(resumed)
    done = [number for _ in range(4) for number in next(iterator)["id"].tolist()]
    state, rest = resumed.state_dict(), []
    for rank in range(2):
        other, _ = tq.create_dataloader(
            narrow,
            batch_tokens=400,
            batch_size=50,
            rank=rank,
            world_size=2,
            remainder="uneven",
            output_format="numpy",
            **options,
        )
        other.load_state_dict(state)
        rest += [number for batch in other for number in batch["id"].tolist()]
    assert sorted(done + rest) == list(range(DOCUMENTS))


HOSTILE = {
    "pack": ({"pack": 4096}, "pack=4096 must be a tensorquery.Pack"),
    "both": ({"pack": tq.Pack(["tokens"], 8), "batch_tokens": 9}, "does not go with pack="),
    "bucket": ({"bucket_by": "tokens"}, "bucket_by='tokens' goes with batch_tokens="),
    "budget": ({"batch_tokens": 0}, "batch_tokens=0 must be an integer of at least 1"),
    "row": (
        {"batch_tokens": 20, "bucket_by": "size"},
        r"row \d+ has \d+ tokens, more than batch_tokens=20",
    ),
    "which": ({"batch_tokens": 20}, "give bucket_by="),
    "no bucket": ({"batch_tokens": 20, "bucket_by": "sizes"}, "did you mean 'size'"),
    "text": (
        {"batch_tokens": 20, "bucket_by": "word"},
        "must be a list column or a column of whole numbers",
    ),
    "column": ({"pack": tq.Pack(["token"], 8)}, "no column 'token'; did you mean 'tokens'"),
    "scalars": ({"pack": tq.Pack(["id"], 8)}, "column 'id' is no list of numbers"),
    "uneven": (
        {"pack": tq.Pack(["tokens", "tags"], 8)},
        "row 0 has .* in column 'tokens' and 0 in 'tags'",
    ),
    "pad": (
        {"pack": tq.Pack(["tokens"], 8, pad=0.5)},
        "pad=0.5 does not fit column 'tokens' of int32",
    ),
    "wide": ({"pack": tq.Pack(["tokens"], 8, pad=2**40)}, "does not fit column 'tokens' of int32"),
    "int32": ({"pack": tq.Pack(["tokens"], 2**30)}, "more than 2147483647 tokens"),
    "row pad": (
        {"pack": tq.Pack(["tokens"], 8), "pad": {"tokens": 0}},
        r"give Pack\(pad=…\) instead",
    ),
    "weights": (
        {"pack": tq.Pack(["tokens"], 8), "sample_weight": "id"},
        "sample_weight='id' does not go with pack=",
    ),
    "format": (
        {"pack": tq.Pack(["tokens"], 8), "output_format": "arrow"},
        "output_format='arrow' does not go with pack=",
    ),
    "steps": (
        {
            "pack": tq.Pack(["tokens"], 64, multiple=16),
            "batch_size": 1,
            "rank": 0,
            "world_size": 17,
        },
        r"cannot be 17 ranks' equal steps; give Pack\(multiple=17\)",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_option_that_does_not_fit_is_refused_by_name(query, case):
    options, words = HOSTILE[case]
    with pytest.raises(tq.TensorQueryError, match=words):
        tq.create_dataloader(query, **options)


WRONG = {
    "columns='tokens'": {"columns": "tokens"},
    "must name at least one column": {"columns": []},
    "names a column twice": {"columns": ["a", "a"]},
    "length=0": {"length": 0},
    "window=-1": {"window": -1},
    "long='cut'": {"long": "cut"},
    "loss='b' must be one of": {"loss": "b"},
    "beside loss='a'": {"loss": "a"},
    "pad=True must be a number": {"pad": True},
    "pad names 'b'": {"pad": {"b": 0}},
    "multiple=1.5": {"multiple": 1.5},
}


@pytest.mark.parametrize("words", WRONG)
def test_a_malformed_pack_cannot_be_made(words):
    with pytest.raises(tq.ConfigError, match=words):
        tq.Pack(**{"columns": ["a"], "length": 8, **WRONG[words]})


def test_a_state_of_other_packs_is_refused_and_packs_are_not_refreshed(query):
    loader, dataset = packs_of(query)
    next(iter(loader))
    other, _ = packs_of(query, window=7)
    with pytest.raises(tq.CheckpointMismatchError, match="the query"):
        other.load_state_dict(loader.state_dict())
    with pytest.raises(tq.ConfigError, match="refresh"):
        dataset.refresh()
    with pytest.raises(tq.ConfigError, match="document_rows"):
        dataset.receipt()
    with pytest.raises(tq.ConfigError, match="no mixture"):
        packs_of(tq.mix([(query, 0.5), (query, 0.5)]))


def test_packs_are_read_ahead_of_the_loop_and_a_transform_is_called_by_it(query, monkeypatch):
    read_by, called_by = set(), set()
    gather = ReadPacks.__call__

    def reads(self, batch):
        read_by.add(threading.current_thread().name)
        return gather(self, batch)

    def transform(batch):
        called_by.add(threading.current_thread().name)
        return batch

    monkeypatch.setattr(ReadPacks, "__call__", reads)
    packs, _ = packs_of(query)
    expected = tokens_in(packs)
    assert read_by == {"tensorquery-transform_0"}
    read_by.clear()
    loader, _ = packs_of(query, transform=transform)
    assert tokens_in(loader) == expected
    assert read_by == called_by == {threading.current_thread().name}
