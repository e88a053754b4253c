"""Promises 1 and 3 (docs/promises.md): over all ranks and workers, an epoch delivers each row of the query's result exactly once,
in exact batches: only a shard's last batch is short. For any schema, files, row groups, query, filter,
format, world size, worker count, batch size and shuffling."""

import itertools

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import support
import tensorquery as tq

_numbers = itertools.count()

FILTERS = [
    None,
    "id % 3 = 1",
    "id >= 40 AND id < 90",
    "v > 0",
    "v IS NULL",
    "k IN (1, 2) OR v < -1",
    "id < 0",
    [("k", "=", 3), ("id", ">", 10)],
    pc.field("v") > 0.5,
]


@st.composite
def topologies(draw):
    """World size, workers and the options of the reading side."""
    return {
        "world_size": draw(st.integers(1, 9)),
        "workers": draw(st.integers(0, 4)),
        "batch_size": draw(st.sampled_from([1, 2, 3, 7, 16, 64, 1000])),
        "shuffle": draw(st.booleans()),
        "shuffle_seed": draw(st.integers(0, 2**40)),
        "shuffle_buffer_size": draw(st.sampled_from([None, 1, 5, 40, 10_000])),
        "split_strategy": draw(st.sampled_from([None, "lpt", "round_robin", support.LastFirst()])),
        "split_rows": draw(st.sampled_from([None, 1, 25, 10_000])),
    }


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 300),
    files=st.integers(1, 6),
    columns=st.lists(st.sampled_from(sorted(support.COLUMNS)), unique=True, max_size=4),
    chosen=st.sampled_from(FILTERS),
    topology=topologies(),
)
def test_any_table_any_filter_any_topology(tmp_path, seed, rows, files, columns, chosen, topology):
    rng = np.random.default_rng(seed)
    table = support.random_table(rng, rows, columns)
    folder = support.write_parquet(tmp_path / str(next(_numbers)), table, files=files, rng=rng)
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.table("t").select(None, chosen)
    shards = support.read_shards(query, **topology)
    support.assert_exactly_once(query, shards, topology["batch_size"])
    if chosen is None:
        assert support.rows_of(itertools.chain(*shards)) == support.rows_of([table])


LITERALS = {
    "id": ["0", "17", "150", "299", "-1"],
    "k": ["0", "3", "6", "7"],
    "v": ["0", "-0.5", "1e300"],
    "i8": ["0", "-128", "127", "5"],
    "f32": ["0", "1.5"],
    "s": ["''", "'a'", "'größe'", "'x'", "'zz'"],
    "day": ["DATE '2026-01-01'", "DATE '2026-02-20'", "DATE '2030-01-01'"],
    "moment": ["TIMESTAMPTZ '2026-01-05 00:00:00+00'", "TIMESTAMPTZ '2026-01-12 12:00:00+00'"],
    "price": ["0", "5000.25", "9999.99"],
}


@st.composite
def predicates(draw, depth=2):
    """A predicate that DataFusion and DuckDB read alike."""
    if depth and draw(st.booleans()):
        left, right = draw(predicates(depth - 1)), draw(predicates(depth - 1))
        return draw(
            st.sampled_from([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
        )
    column = draw(st.sampled_from([*LITERALS, "flag"]))
    if column == "flag":
        return draw(st.sampled_from(["flag", "NOT flag", "flag IS NULL", "flag IS NOT TRUE"]))
    one, other = (draw(st.sampled_from(LITERALS[column])) for _ in range(2))
    forms = [
        f"{column} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {one}",
        f"{column} BETWEEN {one} AND {other}",
        f"{column} IN ({one}, {other})",
        f"{column} NOT IN ({one}, {other})",
        f"{column} IS NULL",
        f"{column} IS NOT NULL",
        f"coalesce({column}, {one}) = {other}",
    ]
    if column == "s":
        forms += ["s LIKE 'x%'", "s LIKE '%e'", "length(s) > 1", "upper(s) = 'A'"]
    return draw(st.sampled_from(forms))


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    predicate=predicates(),
    world_size=st.integers(1, 4),
    indexed=st.booleans(),
)
def test_pruning_loses_no_row_that_another_engine_finds(
    tmp_path, seed, predicate, world_size, indexed
):
    """Against DuckDB over the table in memory, which has no statistics to be misled by."""
    rng = np.random.default_rng(seed)
    table = support.random_table(rng, 300, ["i8", "f32", "s", "flag", "day", "moment", "price"])
    # Sorted by some column, so that row groups and pages can be pruned; without NaN, which statistics leave out.
    table = table.set_column(2, "v", pc.if_else(pc.is_nan(table["v"]), None, table["v"]))
    table = table.sort_by(str(rng.choice(list(LITERALS))))
    folder = support.write_parquet(
        tmp_path / str(next(_numbers)),
        table,
        files=3,
        rng=rng,
        write_page_index=indexed,
        data_page_size=64,
        write_batch_size=8,
    )
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.sql(f"SELECT * FROM t WHERE {predicate}")
    found = support.read_shards(query, world_size, batch_size=50, split_rows=20)
    expected = duckdb.connect().register("t", table).sql(f"SELECT id FROM t WHERE {predicate}")
    ids = support.flat(support.ids_of(support.flat(found)))
    assert sorted(ids) == sorted(row[0] for row in expected.fetchall())


# The tables that the shapes below read; all of them are registered, most queries use a part.
def _tables(folder):
    rng = np.random.default_rng(7)
    fact = support.random_table(rng, 500, ["s", "list", "flag"])
    dim = pa.table(
        {"k": pa.array([0, 1, 2, 2, None], pa.int32()), "name": ["zero", "one", "two", "zwei", "?"]}
    )
    session = tq.Session()
    session.register_parquet("fact", support.write_parquet(folder / "fact", fact, files=4, rng=rng))
    session.register_parquet(
        "dim", support.write_parquet(folder / "dim", dim, files=2, row_group=2)
    )
    session.register_table("dim_memory", dim)
    session.register_table("memory", pa.concat_tables(support.cut(fact, 3)))
    for part in (1, 2, None):
        value = "__HIVE_DEFAULT_PARTITION__" if part is None else part
        piece = fact.slice((part or 0) * 100, 80)
        support.write_parquet(
            folder / f"hive/part={value}/city=New%20York", piece, files=2, row_group=30
        )
    session.register_parquet("hive", str(folder / "hive"), partitioning="hive")
    simple = fact.select(["id", "k", "s", "flag"])
    for name, compress in (("plain", None), ("gz", "gz"), ("bz2", "bz2")):
        session.register_csv(
            f"csv_{name}",
            support.write_csv(folder / f"csv_{name}", simple, files=3, compress=compress),
        )
    session.register_json("json", support.write_json(folder / "json", simple, files=3))
    session.register_json(
        "json_gz", support.write_json(folder / "json_gz", simple, files=2, compress="gz")
    )
    session.register_json(
        "json_array",
        support.write_json(folder / "json_array", simple, files=2, array=True),
        array=True,
    )
    session.register_arrow("arrow", support.write_arrow(folder / "arrow", fact, files=3))
    session.register_orc("orc", support.write_orc(folder / "orc", simple, files=3, stripe=20))
    session.register_view("late", "SELECT id, k, v FROM fact WHERE v > 0")
    session.register_view("late_named", "SELECT l.id, d.name FROM late l JOIN dim d USING (k)")
    return session


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    return _tables(tmp_path_factory.mktemp("tables"))


SHAPES = {
    "all": "SELECT * FROM fact",
    "expressions": "SELECT id, upper(s) AS u, v * 2 + k AS w, CASE WHEN flag THEN 1 ELSE 0 END AS y FROM fact WHERE v IS NOT NULL",
    "no_id": "SELECT k, flag FROM fact",
    "no_rows": "SELECT * FROM fact WHERE id < 0",
    "never": "SELECT * FROM fact WHERE 1 = 2",
    "inner_join": "SELECT f.id, d.name FROM fact f JOIN dim d ON f.k = d.k",
    "inner_join_turned": "SELECT f.id, d.name FROM dim d JOIN fact f ON f.k = d.k AND f.v > 0",
    "left_join": "SELECT f.id, f.s, d.name FROM fact f LEFT JOIN dim d ON f.k = d.k",
    "right_join": "SELECT f.id, d.name FROM dim d RIGHT JOIN fact f ON f.k = d.k",
    "two_joins": "SELECT f.id, d.name, m.name AS other FROM fact f LEFT JOIN dim d ON f.k = d.k JOIN dim_memory m ON f.k + 1 = m.k",
    "aggregated_side": "SELECT f.id, a.n FROM fact f JOIN (SELECT k, count(*) AS n FROM dim GROUP BY k) a ON f.k = a.k",
    "range_join": "SELECT f.id, d.name FROM fact f JOIN dim d ON f.k > d.k",
    "cross_join": "SELECT f.id, d.name FROM fact f CROSS JOIN dim d",
    "semi_in": "SELECT * FROM fact WHERE k IN (SELECT k FROM dim)",
    "semi_exists": "SELECT id FROM fact f WHERE EXISTS (SELECT 1 FROM dim d WHERE d.k = f.k)",
    "anti": "SELECT id FROM fact f WHERE NOT EXISTS (SELECT 1 FROM dim d WHERE d.k = f.k)",
    "mark": "SELECT id FROM fact f WHERE v > 1 OR EXISTS (SELECT 1 FROM dim d WHERE d.k = f.k)",
    "scalar_subquery": "SELECT id FROM fact WHERE k > (SELECT min(k) FROM dim)",
    "self_join": "SELECT a.id, b.id AS other FROM fact a JOIN fact b ON a.id = b.id + 1",
    "union_all": "SELECT id, v FROM fact WHERE v > 0 UNION ALL SELECT id, v FROM late UNION ALL SELECT k, v FROM memory",
    "union_all_joins": "SELECT f.id, d.name FROM fact f JOIN dim d USING (k) UNION ALL SELECT id, s FROM csv_plain",
    "join_over_union": "SELECT u.id, d.name FROM (SELECT id, k FROM fact UNION ALL SELECT id, k FROM hive) u JOIN dim d ON u.k = d.k",
    "unnest": "SELECT id, unnest(list) AS item FROM fact WHERE id % 2 = 0",
    "hive": "SELECT * FROM hive",
    "hive_filter": "SELECT id, part, city FROM hive WHERE part = 2 OR id < 50",
    "hive_null": "SELECT id, part FROM hive WHERE part IS NULL",
    "memory": "SELECT * FROM memory WHERE k <> 2",
    "view": "SELECT * FROM late",
    "view_of_view": "SELECT name, id FROM late_named WHERE id % 2 = 0",
    "cte": "WITH a AS (SELECT id, k FROM fact), b AS (SELECT k, name FROM dim) SELECT a.id, b.name FROM a JOIN b USING (k)",
    "csv": "SELECT * FROM csv_plain",
    "csv_filter": "SELECT id, s FROM csv_plain WHERE k > 3",
    "csv_gz": "SELECT * FROM csv_gz",
    "csv_bz2": "SELECT * FROM csv_bz2",
    "json": "SELECT * FROM json",
    "json_filter": "SELECT id FROM json WHERE flag",
    "json_gz": "SELECT * FROM json_gz",
    "json_array": "SELECT * FROM json_array",
    "arrow": "SELECT * FROM arrow",
    "orc": "SELECT * FROM orc",
    "orc_filter": "SELECT id, s FROM orc WHERE k > 3 AND id < 150",
}

TOPOLOGIES = [
    {"world_size": 1, "batch_size": 64},
    {
        "world_size": 2,
        "workers": 3,
        "batch_size": 7,
        "shuffle": True,
        "shuffle_buffer_size": 50,
        "split_bytes": 300,
    },
    {"world_size": 9, "workers": 2, "batch_size": 10, "shuffle": True, "split_rows": 20},
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_query(tables, shape):
    query = tables.sql(SHAPES[shape])
    expected = query.to_arrow()
    assert (expected.num_rows == 0) == (shape in ("no_rows", "never"))
    for topology in TOPOLOGIES:
        shards = support.read_shards(query, **topology)
        support.assert_exactly_once(query, shards, topology["batch_size"])
        kinds = {batch.schema for shard in shards for batch in shard}
        assert kinds <= {expected.schema}


DUCKDB_SHAPES = [
    "inner_join", "left_join", "right_join", "range_join", "cross_join", "semi_in", "semi_exists", "anti",
    "mark", "scalar_subquery", "self_join", "aggregated_side", "unnest", "cte",
]  # fmt: skip


@pytest.mark.parametrize("shape", DUCKDB_SHAPES)
def test_the_result_is_that_of_another_engine(tables, shape):
    """DataFusion's own result is the measure above; here it is DuckDB's."""
    engine = duckdb.connect()
    for name in ("fact", "dim"):
        engine.register(name, tables.table(name).to_arrow())
    expected = engine.sql(SHAPES[shape]).to_arrow_table()
    shards = support.read_shards(tables.sql(SHAPES[shape]), 3, 2, batch_size=9, split_rows=25)
    found = [
        tuple(row.values()) for shard in shards for batch in shard for row in batch.to_pylist()
    ]
    assert sorted(map(repr, found)) == sorted(
        repr(tuple(row.values())) for row in expected.to_pylist()
    )
    assert found


def test_files_of_different_schemas_keep_their_rows(tmp_path):
    """A widened column and one that a file lacks: pruning by statistics must see both as they are read."""
    support.write_parquet(
        tmp_path / "t/a",
        pa.table({"id": pa.array(range(50), pa.int32()), "x": pa.array([0.5] * 50, pa.float32())}),
    )
    support.write_parquet(
        tmp_path / "t/b",
        pa.table(
            {"id": pa.array(range(50, 100), pa.int64()), "x": [0.25] * 50, "extra": ["e"] * 50}
        ),
        row_group=10,
    )
    session = tq.Session()
    session.register_parquet("t", str(tmp_path / "t"))
    expected = {
        "extra IS NULL": range(50),
        "extra = 'e'": range(50, 100),
        "extra IS NULL OR id > 90": [*range(50), *range(91, 100)],
        "id BETWEEN 45 AND 54": range(45, 55),
        "x = 0.5": range(50),
        "id > 2147483648": [],
    }
    for predicate, ids in expected.items():
        query = session.sql(f"SELECT * FROM t WHERE {predicate}")
        shards = support.read_shards(query, 3, batch_size=7)
        assert sorted(support.flat(support.ids_of(support.flat(shards)))) == list(ids), predicate
        support.assert_exactly_once(query, shards, 7)


@pytest.mark.parametrize("table", ["csv_plain", "json"])
def test_text_is_cut_at_record_borders(tables, table):
    """Tiny byte ranges: quoted newlines stay in one record (CSV), lines in one split (JSON)."""
    query = tables.table(table)
    assert query.plan_shards(split_bytes=64).num_splits > 10
    shards = support.read_shards(query, 3, batch_size=11, split_bytes=64)
    support.assert_exactly_once(query, shards, 11)


@pytest.mark.slow
def test_every_world_size_and_worker_count(tables):
    query = tables.sql(SHAPES["left_join"] + " WHERE f.id % 2 = 1")
    for world_size, workers in itertools.product(range(1, 10), range(5)):
        shards = support.read_shards(query, world_size, workers, batch_size=9, split_rows=10)
        assert len(shards) == world_size * max(1, workers)
        support.assert_exactly_once(query, shards, 9)


def test_more_shards_than_splits(tables):
    """Shards without a split yield nothing and do not fail."""
    query = tables.table("dim")
    shards = support.read_shards(query, 9, 4, batch_size=2)
    support.assert_exactly_once(query, shards, 2)
    assert [] in shards


def test_a_rank_reads_the_same_rows_whatever_its_workers(tables):
    query = tables.sql("SELECT id FROM fact")
    for rank in range(3):
        dataset = tq.QueryDataset(
            query, rank=rank, world_size=3, batch_size=8, output_format="arrow"
        )
        own = [
            sorted(
                support.flat(
                    support.ids_of(
                        itertools.chain(*(list(dataset._iterate(w, n)) for w in range(max(1, n))))
                    )
                )
            )
            for n in (0, 1, 4)
        ]
        assert own[0] == own[1] == own[2] != []


@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict"])
def test_tensors_hold_the_same_rows(tables, output_format):
    query = tables.sql("SELECT id, k, s FROM fact WHERE s IS NOT NULL")
    delivered = []
    for rank in range(2):
        loader, _ = tq.create_dataloader(
            query,
            rank=rank,
            world_size=2,
            batch_size=30,
            shuffle=True,
            output_format=output_format,
            shuffle_buffer_size=70,
        )
        for batch in loader:
            assert len(batch["id"]) == len(batch["k"]) == len(batch["s"])
            delivered += zip(map(int, batch["id"]), map(int, batch["k"]), batch["s"], strict=True)
    expected = [tuple(row.values()) for row in query.to_arrow().to_pylist()]
    assert sorted(delivered) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "workers"), [(1, 1), (2, 2), (1, 4)])
def test_real_worker_processes(tables, world_size, workers):
    query = tables.sql(SHAPES["left_join"])
    rows = []
    for rank in range(world_size):
        loader, _ = tq.create_dataloader(
            query, rank=rank, world_size=world_size, num_workers=workers, batch_size=13, shuffle=True,
            shuffle_buffer_size=60, output_format="dict", split_rows=25,
        )  # fmt: skip
        batches = list(loader)
        assert sum(len(batch["id"]) < 13 for batch in batches) <= workers
        rows += [
            row
            for batch in batches
            for row in zip(batch["id"], batch["s"], batch["name"], strict=True)
        ]
    expected = [tuple(row.values()) for row in query.to_arrow().to_pylist()]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
