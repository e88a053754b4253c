"""A shard plan says what every rank and worker will read: which splits, rows and bytes, how even they are, and
what was pruned. Strategies deal every split once, or are refused by name."""

import json

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq

ROWS, FILES, GROUP = 6000, 3, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    table = pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 7, "s": ["text"] * ROWS})
    return support.write_parquet(
        tmp_path_factory.mktemp("plan"), table, files=FILES, row_group=GROUP
    )


@pytest.fixture
def session(folder):
    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_parquet("u", folder)
    session.register_table("dim", pa.table({"k": [0, 1, 2], "name": ["a", "b", None]}))
    return session


@pytest.fixture
def query(session):
    return session.table("t")


# ------------------------------------------------------------------------------------------------
# A plan as text and data.


def test_a_plan_prints_as_a_table(query):
    text = repr(query.plan_shards(world_size=2, num_workers=2, batch_size=64))
    lines = text.splitlines()
    assert lines[0].startswith("ShardPlan: 60 splits, 2 ranks × 2 workers, imbalance 1.0")
    assert lines[1] == "pruned: 0 of 3 files, 0 of 60 row groups of the files listed"
    assert lines[2] == "every rank delivers 3,000 rows in 47 steps"
    assert lines[3].split() == [
        "rank",
        "worker",
        "splits",
        "rows",
        "before",
        "filters",
        "bytes",
        "batches",
        "at",
        "most",
    ]
    assert len(lines) == 4 + 4
    assert [line.split()[:4] for line in lines[4:]] == [
        ["0", "0", "15", "1,500"], ["0", "1", "15", "1,500"], ["1", "0", "15", "1,500"], ["1", "1", "15", "1,500"],
    ]  # fmt: skip
    assert "batches" not in repr(query.plan_shards())


def test_a_plan_of_many_shards_prints_the_first(query):
    text = repr(query.plan_shards(world_size=50))
    assert text.endswith("… and 18 more shards")


def test_a_plan_as_plain_data(query):
    plan = query.plan_shards(world_size=3, num_workers=2, batch_size=7)
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["num_splits"] == 60
    assert (data["world_size"], data["num_workers"]) == (3, 2)
    assert data["fingerprint"] == plan.fingerprint
    assert len(data["shards"]) == 6
    assert sum(shard["rows"] for shard in data["shards"]) == ROWS
    assert data["shards"][5] == {
        "rank": 2, "worker": 1, "splits": 10, "rows": 1000, "bytes": data["shards"][5]["bytes"], "batches_at_most": 143,
    }  # fmt: skip


def test_a_plan_as_a_table(query):
    table = query.plan_shards(world_size=3).to_table()
    assert table.column_names == ["rank", "worker", "splits", "rows", "bytes", "batches_at_most"]
    assert table["rank"].to_pylist() == [0, 1, 2]
    assert sum(table["rows"].to_pylist()) == ROWS


def test_plans_compare(query, session):
    plan = query.plan_shards(world_size=2)
    assert plan == query.plan_shards(world_size=2)
    assert hash(plan) == hash(query.plan_shards(world_size=2))
    assert plan != query.plan_shards(world_size=3)
    assert plan != query.plan_shards(world_size=2, num_workers=1)
    assert plan != query.plan_shards(world_size=2, split_rows=1000)
    assert plan != query.plan_shards(world_size=2, split_strategy="round_robin")
    assert plan != session.sql("SELECT id FROM t").plan_shards(world_size=2)
    assert plan != "plan"


def test_a_split_says_where_its_rows_are(query, folder):
    splits = query.plan_shards(split_rows=250).splits()
    assert [split.id for split in splits] == list(range(30))
    one = splits[13]
    assert one.path == f"{folder}/001.parquet"
    assert one.row_range == tq.RowRange(600, 200)
    assert one.row_count == 200
    assert one.file_size > one.bytes > 0
    assert one.partition_values == {}
    assert one.snapshot_id is None
    assert one.unit == "row groups 6 to 7"


def test_the_shards_hold_the_splits_once(query):
    plan = query.plan_shards(world_size=3, num_workers=2)
    shards = [plan.splits(rank, worker) for rank in range(3) for worker in range(2)]
    assert sorted(split.id for shard in shards for split in shard) == list(range(60))
    for shard, summary in zip(shards, plan.shards, strict=True):
        assert (len(shard), sum(split.row_count for split in shard), sum(split.bytes for split in shard)) == (
            summary.splits, summary.rows, summary.bytes,
        )  # fmt: skip
        # LPT decides who reads a split, never in which order.
        assert [split.id for split in shard] == sorted(split.id for split in shard)


@pytest.mark.parametrize(("rank", "worker"), [(3, 0), (-1, 0), (0, 2)])
def test_a_shard_that_is_not_there(query, rank, worker):
    plan = query.plan_shards(world_size=3, num_workers=2)
    with pytest.raises(tq.ConfigError, match=r"0\.\.3 and 0\.\.2"):
        plan.splits(rank, worker)


def test_a_dataset_shows_its_plan(query):
    dataset = tq.QueryDataset(query, rank=1, world_size=3, batch_size=50, split_rows=200)
    assert dataset.shard_plan(2) == query.plan_shards(world_size=3, num_workers=2, split_rows=200)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"world_size": 0}, {"world_size": "2"}, {"num_workers": -1}, {"batch_size": 0},
                                     {"split_rows": 0}, {"split_bytes": "12 apples"}, {"split_bytes": 0}])  # fmt: skip
def test_a_bad_option_is_named(query, options):
    (name,) = options
    with pytest.raises(tq.ConfigError, match=name):
        query.plan_shards(**options)


# ------------------------------------------------------------------------------------------------
# Sizes.


def test_split_bytes_as_a_number_and_as_a_string(query):
    sizes = [split.bytes for split in query.plan_shards(split_bytes=1).splits()]
    assert len(sizes) == 60  # a split is at least one row group
    bound = 3 * max(sizes)
    assert bound < 10_000
    plans = [
        query.plan_shards(split_bytes=value)
        for value in (bound, str(bound), f"{bound / 1000}kB", f"{bound / 1024:.6f} KiB")
    ]
    assert {plan.num_splits for plan in plans} == {21}
    assert all(split.bytes <= bound for split in plans[0].splits())
    assert query.plan_shards(split_bytes="64MiB").num_splits == FILES


def test_split_rows_takes_precedence(query):
    for split_bytes in (1, "1GiB"):
        plan = query.plan_shards(split_rows=500, split_bytes=split_bytes)
        assert [split.row_count for split in plan.splits()] == [500] * 12


def test_a_split_never_spans_files(query):
    assert query.plan_shards(split_rows=10**9).num_splits == FILES


def test_only_projected_columns_weigh(session):
    whole = sum(split.bytes for split in session.table("t").plan_shards().splits())
    one = sum(split.bytes for split in session.sql("SELECT k FROM t").plan_shards().splits())
    assert 0 < one < whole / 2


# ------------------------------------------------------------------------------------------------
# Balance and pruning.


def test_lpt_is_more_even_than_round_robin(tmp_path):
    session = tq.Session()
    for number, rows in enumerate([8000, 10, 8000, 10, 8000, 10, 8000, 10]):
        support.write_parquet(
            tmp_path / f"t/{number}", pa.table({"x": np.random.default_rng(number).random(rows)})
        )
    session.register_parquet("t", str(tmp_path / "t"))
    query = session.table("t")
    lpt = query.plan_shards(world_size=2)
    turns = query.plan_shards(world_size=2, split_strategy="round_robin")
    assert lpt.imbalance < 1.01
    assert turns.imbalance > 1.9
    assert [shard.splits for shard in turns.shards] == [4, 4]
    loads = [shard.bytes for shard in turns.shards]
    assert turns.imbalance == pytest.approx(max(loads) / (sum(loads) / 2))
    assert query.plan_shards(world_size=16).imbalance > 2  # more shards than splits


def test_round_robin_deals_in_turn(query):
    plan = query.plan_shards(world_size=4, split_strategy="round_robin")
    assert [split.id for split in plan.splits(1)] == list(range(1, 60, 4))


def test_pruned_row_groups_and_files_are_counted(session):
    plan = session.sql("SELECT * FROM t WHERE id >= 2150 AND id < 2250").plan_shards()
    assert (plan.files, plan.files_pruned) == (3, 2)
    assert (plan.row_groups, plan.row_groups_pruned) == (60, 58)
    assert [split.row_range for split in plan.splits()] == [(100, 200)] or plan.num_splits == 2
    nothing = session.sql("SELECT * FROM t WHERE id < 0").plan_shards(world_size=2)
    assert (nothing.num_splits, nothing.files_pruned, nothing.imbalance) == (0, 3, 1.0)
    assert "pruned: 3 of 3 files, 60 of 60 row groups" in repr(nothing)


def test_hive_values_are_shown_and_prune(tmp_path):
    for year in (2025, 2026):
        support.write_parquet(tmp_path / f"h/year={year}/who=a%2Fb", pa.table({"x": [1, 2]}))
    session = tq.Session()
    session.register_parquet("h", str(tmp_path / "h"))
    plan = session.sql("SELECT x FROM h WHERE year = 2026").plan_shards()
    (split,) = plan.splits()
    assert split.partition_values == {"year": "2026", "who": "a/b"}
    assert (plan.files, plan.files_pruned) == (2, 1)


def test_a_text_format_says_no_row_count(tmp_path):
    session = tq.Session()
    session.register_csv("c", support.write_csv(tmp_path / "c", pa.table({"x": [1, 2, 3]})))
    plan = session.table("c").plan_shards(batch_size=2)
    (split,) = plan.splits()
    assert (split.row_count, split.row_range) == (None, None)
    assert plan.shards[0].batches_at_most is None
    assert plan.to_table()["rows"].to_pylist() == [None]
    assert " ?" in repr(plan)


# ------------------------------------------------------------------------------------------------
# Strategies.


class Strategy:
    """Answers what it was given."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def generate(self, splits, num_shards, epoch):
        self.asked.append((len(splits), num_shards, epoch))
        return self.answer(splits, num_shards)


def test_a_custom_strategy_decides(query):
    strategy = Strategy(lambda splits, n: [splits[::-1], *[[]] * (n - 1)])
    assert isinstance(strategy, tq.SplitStrategy)
    plan = query.plan_shards(world_size=2, num_workers=2, split_strategy=strategy)
    assert strategy.asked == [(60, 4, 0)]
    assert [split.id for split in plan.splits(0, 0)] == list(range(59, -1, -1))
    assert plan.splits(1, 1) == []
    assert plan.imbalance == 4.0


def test_tuples_will_do(query):
    strategy = Strategy(lambda splits, n: tuple(tuple(splits[i::n]) for i in range(n)))
    assert query.plan_shards(world_size=3, split_strategy=strategy).shards[2].splits == 20


def foreign(splits, shards):
    import dataclasses

    return [[dataclasses.replace(splits[0], path="elsewhere"), *splits[1:]], []]


BAD_ANSWERS = {
    "missing": (lambda splits, n: [splits[1:], []], r"left out split 0"),
    "many_missing": (
        lambda splits, n: [[], []],
        r"left out 60 splits \(0, 1, 2, 3, 4 and 55 more\)",
    ),
    "repeated": (lambda splits, n: [splits, splits[7:8]], r"repeated split 7"),
    "foreign": (foreign, r"none of the plan's"),
    "too_few_lists": (lambda splits, n: [splits], r"returned 1 lists, but 2 are wanted"),
    "too_many_lists": (lambda splits, n: [splits, [], []], r"returned 3 lists, but 2 are wanted"),
    "ids": (
        lambda splits, n: [[split.id for split in splits], []],
        r"must return 2 lists of Split",
    ),
    "none": (lambda splits, n: None, r"must return 2 lists of Split, got NoneType"),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_a_wrong_answer_is_refused(query, answer):
    make, message = BAD_ANSWERS[answer]
    with pytest.raises(tq.ConfigError, match=message):
        query.plan_shards(world_size=2, split_strategy=Strategy(make))
    with pytest.raises(tq.ConfigError, match=message):
        tq.create_dataloader(query, rank=0, world_size=2, split_strategy=Strategy(make))


def test_a_wrong_answer_in_a_later_epoch_is_refused_too(query):
    answers = iter([lambda s, n: [s], lambda s, n: [s[1:]]])
    strategy = Strategy(lambda splits, n: next(answers)(splits, n))
    loader, _ = tq.create_dataloader(query, split_strategy=strategy)
    assert len(list(loader)) == 6
    with pytest.raises(tq.ConfigError, match="left out split 0"):
        list(loader)
    assert [epoch for _, _, epoch in strategy.asked] == [0, 1]


def test_an_error_of_a_strategy_is_its_own(query):
    with pytest.raises(ZeroDivisionError):
        query.plan_shards(split_strategy=Strategy(lambda splits, n: 1 // 0))


@pytest.mark.parametrize("strategy", ["ltp", 3, object(), str])
def test_what_is_no_strategy_is_refused(query, strategy):
    with pytest.raises(tq.ConfigError, match='"lpt", "round_robin" or an object with'):
        query.plan_shards(split_strategy=strategy)


# ------------------------------------------------------------------------------------------------
# Queries that cannot be sharded: the error names the operator and a way out.

NOT_SHARDABLE = {
    "SELECT k, count(*) AS n FROM t GROUP BY k": r"aggregate.*GROUP BY",
    "SELECT sum(id) AS s FROM t": r"aggregate",
    "SELECT DISTINCT k FROM t": r"DISTINCT",
    "SELECT id FROM t UNION SELECT id FROM u": r"aggregate",
    "SELECT id FROM t INTERSECT SELECT id FROM u WHERE id > 3": r"aggregate",
    "SELECT id, row_number() OVER (ORDER BY id) AS r FROM t": r"window",
    "SELECT id FROM t ORDER BY id DESC": r"ORDER BY",
    "SELECT id FROM t LIMIT 5": r"LIMIT",
    "SELECT id FROM t OFFSET 5": r"OFFSET",
    "SELECT id FROM t WHERE id IN (SELECT id FROM u LIMIT 3) LIMIT 1": r"LIMIT",
    "SELECT t.id, d.name FROM t FULL JOIN dim d ON t.k = d.k": r"(?i)full",
    "SELECT id, random() AS r FROM t": r"random\(\).*volatile",
    "SELECT id FROM t WHERE random() < 0.1": r"random\(\).*volatile",
    "SELECT id, uuid() AS u FROM t": r"uuid\(\)",
    "SELECT 1 AS one": r"SELECT without FROM",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 5) SELECT * FROM r": r"recursive",
}


@pytest.mark.parametrize("sql", NOT_SHARDABLE)
def test_not_shardable_names_the_operator(session, sql):
    query = session.sql(sql)
    for make in (tq.Query.plan_shards, tq.QueryDataset):
        with pytest.raises(tq.NotShardableError, match=NOT_SHARDABLE[sql]) as caught:
            make(query, stage="never")
        assert isinstance(caught.value, tq.QueryError)
        assert any(
            word in str(caught.value) for word in ('stage="auto"', "NOT EXISTS", "write", "instead")
        )
    # The query itself still runs.
    assert query.schema is not None


@pytest.mark.parametrize(
    "sql", ["SELECT id FROM t LIMIT 5", "SELECT k, count(*) AS n FROM t GROUP BY k"]
)
def test_the_way_out_works(session, sql):
    session.register_table("once", session.sql(sql))
    query = session.sql("SELECT * FROM once")
    shards = support.read_shards(query, 2, batch_size=3)
    support.assert_exactly_once(query, shards, 3)


def test_an_aggregate_in_a_broadcast_side_is_fine(session):
    query = session.sql(
        "SELECT t.id, a.n FROM t JOIN (SELECT k, count(*) AS n FROM u GROUP BY k) a ON t.k = a.k"
    )
    assert query.plan_shards(world_size=2).num_splits == 60
