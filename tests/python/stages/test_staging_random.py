"""Promise 1 (docs/promises.md): for random SQL, all ranks together deliver DuckDB's answer, whichever part of the
query is staged.

A failure names its seed: `RandomSql(seed).query().sql` is the query.
"""

import random
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from random_sql import RandomSql

pytestmark = pytest.mark.filterwarnings("ignore:the data is sorted by")

CHUNKS, QUERIES = 4, 30

VIEW = "SELECT id, a + 1 AS a2, s FROM t WHERE id % 5 <> 0"


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """A session and DuckDB over the same small tables, with nulls and with keys that have several or no matches."""
    folder = tmp_path_factory.mktemp("random")
    rng = random.Random(1)

    def column(values, count, nulls=0.15):
        return [None if rng.random() < nulls else rng.choice(values) for _ in range(count)]

    required = pa.field("id", pa.int64(), nullable=False)
    t = pa.table(
        [range(60), column(range(6), 60), column(range(-4, 12), 60), column(["a", "b", "é", "", "abc"], 60)],
        schema=pa.schema([required, ("a", pa.int64()), ("b", pa.int64()), ("s", pa.string())]),
    )  # fmt: skip
    keys = pa.array([0, 1, 2, 3, None, 2, 4, 5, 9, 11, 1, None, 3, 7], pa.int64())
    u = pa.table({"k": keys, "v": column(range(9), 14), "w": column("abc", 14)})
    h = pa.table({"id": range(40), "a": pa.array(column(range(6), 40), pa.int64())})
    support.write_parquet(folder / "t", t, files=3, row_group=7)
    pq.write_table(u, folder / "u.parquet", row_group_size=5)
    parts = ["x"] * 13 + ["y"] * 13 + ["z"] * 14
    for part in "xyz":
        (folder / "h" / f"part={part}").mkdir(parents=True)
        rows = h.filter(pa.array([of == part for of in parts]))
        pq.write_table(rows, folder / "h" / f"part={part}" / "0.parquet", row_group_size=4)
    session = tq.Session()
    for name in ("t", "h"):
        session.register_parquet(name, folder / name)
    session.register_parquet("u", folder / "u.parquet")
    session.register_view("tv", VIEW)
    with duckdb.connect(config={"threads": 1}) as duck:
        duck.register("t", t)
        duck.register("u", u)
        duck.register("h", h.append_column("part", pa.array(parts)))
        duck.execute(f"CREATE VIEW tv AS {VIEW}")
        yield session, duck


def rows_of(table):
    """Its rows as a multiset."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def loader_rows(sql, session, folder, rng):
    """The rows of all ranks, and how many stages they were read from."""
    world_size = rng.choice([1, 2, 3])
    options = {
        "stage": rng.choice(["auto"] * 4 + ["always"]),
        "split_bytes": rng.choice(["1KiB", "16MiB"]),
        "shuffle": rng.choice([False, False, True, "global"]),
        "batch_size": rng.choice([1, 7, 64]),
        "num_workers": rng.choice([0] * 15 + [2]),
    }
    if options["num_workers"]:
        options["multiprocessing_context"] = "fork"
    rows, stages = Counter(), 0
    for rank in range(world_size):
        loader, dataset = tq.create_dataloader(
            sql,
            session=session,
            stage_dir=folder,
            rank=rank,
            world_size=world_size,
            output_format="arrow",
            remainder="uneven",
            **options,
        )
        for batch in loader:
            rows += rows_of(batch)
        stages = len(dataset.stages)
    return rows, stages, f"{world_size} ranks, {options}"


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_ranks_deliver_what_duckdb_answers(engines, tmp_path, chunk):
    session, duck = engines
    refused, staged, many = [], 0, 0
    for seed in range(chunk * QUERIES, (chunk + 1) * QUERIES):
        sql = RandomSql(seed).query().sql
        try:
            wanted = rows_of(duck.sql(sql).to_arrow_table())
            asked = rows_of(session.sql(sql).to_arrow())
        except (duckdb.Error, tq.QueryError) as error:
            refused.append(f"{seed}: {error}")
            continue
        assert asked == wanted, f"seed {seed} by to_arrow: {sql}"
        got, stages, how = loader_rows(sql, session, tmp_path, random.Random(seed))
        assert got == wanted, f"seed {seed} by {how}: {sql}"
        staged += stages > 0
        many += wanted.total() > 1
    # One engine may refuse what the other takes, but then the test says nothing.
    assert len(refused) <= QUERIES // 10, refused
    assert staged >= QUERIES // 3
    assert many >= QUERIES // 3


WRONG = {
    "UNION ALL of two types": "SELECT id AS c FROM t UNION ALL SELECT CAST(0.5 AS DOUBLE) FROM u",
    "a count with a FILTER that may be NULL": "SELECT w, count(*) FILTER (WHERE v <> 2) AS n FROM u GROUP BY w",
    "a condition on a constant beside an aggregate of all rows": """
        SELECT * FROM (SELECT 'train' AS part, count(*) AS n FROM t UNION ALL SELECT 'test', count(*) FROM u) AS q
        WHERE part = 'test'
    """,
    "the NULL of a DISTINCT with ORDER BY and LIMIT": "SELECT DISTINCT v FROM u ORDER BY v NULLS FIRST LIMIT 3",
}
"""Faults that random queries found, shrunk: each is corrected or refused now."""


def test_a_rollup_of_no_rows_has_a_grand_total(engines):
    session, duck = engines
    sql = "SELECT count(*) AS n FROM t WHERE id < 0 GROUP BY ROLLUP (a)"
    assert rows_of(session.sql(sql).to_arrow()) == rows_of(duck.sql(sql).to_arrow_table())


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_what_random_queries_found(engines, tmp_path, name):
    session, duck = engines
    wanted = rows_of(duck.sql(WRONG[name]).to_arrow_table())
    try:
        asked = rows_of(session.sql(WRONG[name]).to_arrow())
    except tq.QueryError:
        return  # better than a wrong row
    assert asked == wanted
    assert loader_rows(WRONG[name], session, tmp_path, random.Random(0))[0] == wanted


@pytest.mark.slow
def test_worker_processes_where_a_hive_table_is_read_by_the_stage_alone(engines, tmp_path):
    session, duck = engines
    sql = "SELECT part, count(*) AS n FROM h GROUP BY part"
    loader, _ = tq.create_dataloader(
        sql,
        session=session,
        stage_dir=tmp_path,
        num_workers=1,
        multiprocessing_context="fork",
        output_format="arrow",
    )
    assert sum(map(rows_of, loader), Counter()) == rows_of(duck.sql(sql).to_arrow_table())


def test_shuffled_batches_of_inputs_of_which_one_has_no_nulls(engines):
    session, duck = engines
    sql = "SELECT id AS c FROM t UNION ALL SELECT k FROM u"
    loader, _ = tq.create_dataloader(
        sql, session=session, shuffle=True, batch_size=7, output_format="arrow", split_bytes="1KiB"
    )
    assert sum(map(rows_of, loader), Counter()) == rows_of(duck.sql(sql).to_arrow_table())


def test_a_join_above_a_union_of_which_one_input_is_staged(engines, tmp_path):
    session, duck = engines
    sql = """
        SELECT c, v FROM (SELECT a AS c FROM t UNION ALL SELECT count(*) FROM t GROUP BY a) AS q LEFT JOIN u ON c = k
    """
    loader, _ = tq.create_dataloader(
        sql, session=session, stage_dir=tmp_path, batch_size=7, output_format="arrow"
    )
    assert sum(map(rows_of, loader), Counter()) == rows_of(duck.sql(sql).to_arrow_table())


def test_a_mixture_of_which_all_is_staged_is_mixed(engines, tmp_path):
    session, _ = engines
    both = [session.sql(f"SELECT {name} AS x, id FROM t") for name in ("0", "1")]
    loader, _ = tq.create_dataloader(
        tq.mix([(query, 0.5) for query in both]),
        stage="always",
        stage_dir=tmp_path,
        batch_size=8,
        output_format="dict",
    )
    assert [sum(batch["x"]) for batch in loader] == [4] * 15


@pytest.mark.slow
def test_a_stage_of_a_union_is_the_same_whenever_it_is_built(engines, tmp_path):
    session, _ = engines
    digests = set()
    for build in range(30):
        _, dataset = tq.create_dataloader(
            "SELECT a AS x FROM t UNION ALL SELECT k FROM u",
            session=session,
            stage="always",
            stage_dir=tmp_path / str(build),
        )
        digests.add(dataset.stages[0].digest)
    assert len(digests) == 1
