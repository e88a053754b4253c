"""Plans are compact: one rank of many, and each of its workers, holds only what it reads."""

import itertools
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from synthetic import plan_of
from tensorquery import _core
from tensorquery.distributed.topology import Topology
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.shard_plan import ShardPlan
from tensorquery.sharding.shards import plan_splits

FILES, GROUPS, ROWS = 40, 8, 50
RANKS, WORKERS = 64, 8


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """20,000 splits of 2,000 files that were never written."""
    return plan_of(2_000, tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="module")
def epochs(large):
    deal = Deal(1024, 42, True, None, "even", None, "lpt")
    return Epochs(large, deal, Topology(3, RANKS), list, large.known_counts())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """40 Parquet files of 8 row groups."""
    root = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        first = number * GROUPS * ROWS
        ids = pa.array(range(first, first + GROUPS * ROWS), pa.int64())
        table = pa.table({"id": ids, "k": pa.array([number % 5] * len(ids), pa.int32())})
        pq.write_table(table, root / f"part-{number:03}.parquet", row_group_size=ROWS)
    return root


def test_shares_are_even_and_hold_every_split_once(large, epochs):
    shares = epochs.all_shares()
    assert [share.rank for share in shares] == [*range(RANKS)]
    weights = [share.weight for share in shares]
    plan = ShardPlan(large, RANKS, WORKERS)
    assert max(plan.rank_imbalance, plan.imbalance) - 1 < 0.01
    # Cut to equal rows, so by bytes a little less even.
    assert max(weights) * RANKS / sum(weights) - 1 < 0.02
    request = epochs._request(epochs.layout(WORKERS), 0, None)
    rows, pieces = 0, []
    for share in shares:
        shards = share.shards(large, request)
        sizes = [shards.size(share.rank, worker)[1] for worker in range(WORKERS)]
        rows += sum(sizes)
        pieces += [
            piece for worker in range(WORKERS) for piece in shards.pieces(share.rank, worker)
        ]
    counts = large.known_counts()
    assert rows == sum(counts)
    # Cut or not, the pieces of a split lie side by side and make up all of it.
    ends = [0] * len(counts)
    for split, start, end in sorted(pieces):
        assert ends[split] == start
        ends[split] = end
    assert ends == counts


def test_a_share_is_small(large, epochs):
    whole = len(large.memo())
    for share in epochs.all_shares():
        mine = len(share.encode()) + len(large.memo(share.split_ids()))
        assert mine < 4 * whole / RANKS
    text, blobs, _ = large.recipe(share.split_ids())
    part, (all_text, all_blobs, _) = len(text) + sum(map(len, blobs)), large.recipe()
    # A split of a rank is mostly alone in its file, so files do not shrink as splits do.
    assert part < (len(all_text) + sum(map(len, all_blobs))) / 4


def test_a_part_is_planned_again_with_the_ids_of_the_whole(large, epochs):
    ids = epochs.all_shares()[3].split_ids()
    part = _core.Plan.from_recipe(*large.recipe(ids))
    assert part.fingerprint == large.fingerprint
    assert (part.num_splits, part.bytes, part.row_bytes(), part.known_rows()) == (
        large.num_splits,
        large.bytes,
        large.row_bytes(),
        large.known_rows(),
    )
    assert part.splits(ids) == large.splits(ids)
    other = next(split for split in range(large.num_splits) if split not in set(ids))
    with pytest.raises(
        tq.ConfigError, match=f"split {other} is not in this process's share of the plan"
    ):
        part.splits([other])
    with pytest.raises(tq.ConfigError, match="only its share of the plan"):
        part.assign(2, 0, "lpt")
    with pytest.raises(tq.ConfigError, match=f"split {large.num_splits} does not exist"):
        part.splits([large.num_splits])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(
    ("mixed", "remainder"),
    # A mixture shares every batch, so there is no uneven one.
    [(False, "uneven"), *itertools.product([False, True], ["even", "drop", "pad"])],
)
def test_a_share_gives_the_shards_of_the_whole_deal(folder, remainder, workers, mixed):
    session = tq.Session()
    session.register_parquet("t", str(folder))
    query = session.sql("SELECT id FROM t WHERE k < 4")
    sources = None
    if mixed:
        sources = tq.mix([(query, 0.7), (session.sql("SELECT id FROM t WHERE k = 4"), 0.3)])
    plan = plan_splits((sources or query)._core, "128MiB", 30)
    counts = [row[3] for row in plan.splits(range(plan.num_splits))]
    mixture = {} if sources is None else {"mixture": sources._sources(plan)}
    deal = Deal(16, 7, True, 64, remainder, None, "lpt", exclude=((1, 2, 9),), **mixture)
    for rank in range(5):
        epochs = Epochs(plan, deal, Topology(rank, 5), lambda: counts, None)
        epochs.prepare(workers)
        sent, ids = epochs.for_share(workers, 1, None)
        copy = Epochs.received(pickle.loads(pickle.dumps(sent)))
        part = _core.Plan.from_recipe(*plan.recipe(ids))
        copy.moved_to(part, list)
        for epoch in (0, 1):
            mine, all_of = copy.shards(workers, epoch), epochs.all_shards(workers, epoch)
            for worker in range(max(1, workers)):
                assert mine.pieces(rank, worker) == all_of.pieces(rank, worker)
                assert mine.size(rank, worker) == all_of.size(rank, worker)


def test_partitions_and_their_padding(folder):
    session = tq.Session()
    session.register_parquet("t", str(folder))
    plan = plan_splits(session.table("t")._core, "128MiB", 30)
    deal = Deal(6, 7, True, None, "pad", 12, "lpt")
    for rank in range(4):
        epochs = Epochs(plan, deal, Topology(rank, 4), list, plan.known_counts())
        mine, all_of = epochs.shards(0, 2), epochs.all_shards(0, 2)
        assert mine.pieces(rank, 0) == all_of.pieces(rank, 0)
        assert mine.size(rank, 0) == all_of.size(rank, 0)


def test_damaged_shares_are_refused(epochs):
    content = epochs.all_shares()[0].encode()
    for damaged in (content[:-1], content + b"\0", b"", content[:10] + b"?" + content[11:]):
        with pytest.raises(tq.ConfigError):
            _core.RankShare.decode(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_worker_gets_the_share_of_its_rank_and_delivers_it(folder, start):
    loader, dataset = tq.create_dataloader(
        path=str(folder),
        split_rows=ROWS,
        batch_size=8,
        rank=3,
        world_size=40,
        num_workers=2,
        shuffle=True,
        multiprocessing_context=start,
    )
    alone, _ = tq.create_dataloader(
        path=str(folder), split_rows=ROWS, batch_size=8, rank=3, world_size=40, shuffle=True
    )
    wanted = sorted(value for batch in alone for value in batch["id"].tolist())
    whole = len(pickle.dumps(dataset))
    # As the loader does before it starts workers.
    dataset._state.begin(2, 0, None)
    dataset._state.slots.deliver(0)
    dataset._state.starts_workers = True
    sent = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < whole / 2
    recipe = json.loads(sent._plan._recipe[0])
    [(_, table)] = recipe["tables"]
    assert len(table["Files"]["spec"]["files"]) <= 10 + 6
    dataset._state.slots.deliver(None)
    for _ in range(2):
        found = [batch["id"].numpy() for batch in loader]
        assert sorted(np.concatenate(found).tolist()) == wanted


@pytest.mark.slow
def test_a_worker_goes_on_where_another_topology_stopped(folder):
    options = {"path": str(folder), "split_rows": ROWS, "batch_size": 8, "shuffle": True}
    states, consumed = [], []
    for rank in range(4):
        loader, _ = tq.create_dataloader(rank=rank, world_size=4, **options)
        batches = iter(loader)
        consumed += [value for _ in range(9) for value in next(batches)["id"].tolist()]
        states.append(loader.state_dict())
    left = []
    for rank in range(3):
        loader, dataset = tq.create_dataloader(
            rank=rank, world_size=3, num_workers=2, multiprocessing_context="forkserver", **options
        )
        loader.load_state_dict(states[0])
        left += [value for batch in loader for value in batch["id"].tolist()]
        assert dataset.epoch == 1
    assert sorted(consumed + left) == [*range(FILES * GROUPS * ROWS)]


def test_a_join_keeps_its_build_side_whole(folder):
    session = tq.Session()
    session.register_parquet("t", str(folder))
    query = session.sql("SELECT a.id FROM t AS a JOIN t AS b ON a.id = b.id WHERE b.k = 1")
    plan = plan_splits(query._core, "128MiB", ROWS)
    ids = [*range(0, plan.num_splits, 7)]
    part = _core.Plan.from_recipe(*plan.recipe(ids))
    assert part.splits(ids) == plan.splits(ids)
    assert part.shape() == plan.shape()
