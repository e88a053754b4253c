"""TABLESAMPLE keeps the same rows of a table for every reader and any splits: a hash of seed, file and row decides.

The judge is `expected`, which hashes in Python the numbers that the rows have by construction.
"""

import gzip
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import avro_files
import iceberg_fixtures as fixtures
import tensorquery as tq
from rows import multiset, sharded

SIZES = (700, 1, 333)
"""Rows of the files of a table."""

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def mix(value):
    """SplitMix64's scrambling function."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def key_of(*parts):
    state = mix(len(parts))
    for part in parts:
        state = mix(((state + GOLDEN) & MASK) ^ part)
    return state


def keeps(percent, seed, place, row):
    key = key_of(0x73616D706C65, seed, place)
    return mix((key + (row + 1) * GOLDEN) & MASK) < int(percent / 100 * 2.0**64)


def expected(percent, seed, sizes=SIZES):
    """The ids of the sample; ids count through the files."""
    ids, first = [], 0
    for place, size in enumerate(sizes):
        ids += [first + row for row in range(size) if keeps(percent, seed, place, row)]
        first += size
    return ids


def made(rows, first):
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "k": ids % 7, "v": ids * 0.5})


def write_parquet(path, table):
    pq.write_table(table, path, row_group_size=50)


def write_csv(path, table):
    pa.csv.write_csv(table, path)


def write_gz(path, table):
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink)
    path.write_bytes(gzip.compress(sink.getvalue().to_pybytes()))


def write_json(path, table):
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_orc(path, table):
    pa.orc.write_table(table, path, batch_size=40, stripe_size=1)


def write_arrow(path, table):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=60)


def write_avro(path, table):
    fields = [("id", "long"), ("k", "long"), ("v", "double")]
    schema = {
        "type": "record",
        "name": "Row",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }
    avro_files.write(path, schema, table.to_pylist(), "null", block_bytes=500)


FORMATS = {
    "parquet": ("parquet", write_parquet),
    "csv": ("csv", write_csv),
    "csv.gz": ("csv.gz", write_gz),
    "json": ("ndjson", write_json),
    "orc": ("orc", write_orc),
    "arrow": ("arrow", write_arrow),
    "avro": ("avro", write_avro),
}


def table_of(folder, name):
    """Files of a format under `folder`, three of them."""
    ending, write = FORMATS[name]
    first = 0
    for number, size in enumerate(SIZES):
        write(folder / f"part-{number}.{ending}", made(size, first))
        first += size
    return f"{folder}/*.{ending}"


def ids_of(rows):
    return [row["id"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_the_sample_is_the_same_for_every_format_split_and_topology(tmp_path, name):
    sql = (
        f"SELECT id, v FROM '{table_of(tmp_path, name)}' TABLESAMPLE BERNOULLI (30) REPEATABLE (7)"
    )
    wanted = expected(30, 7)
    assert 200 < len(wanted) < 420
    query = tq.Session().sql(sql)
    assert query.to_arrow()["id"].to_pylist() == wanted
    assert query.count() == len(wanted)
    assert query.head(25)["id"].to_pylist() == wanted[:25]
    for options in (
        {},
        {"split_rows": 1},
        {"split_rows": 97},
        {"split_bytes": 300},
        {"split_bytes": "1GiB"},
    ):
        rows = sharded(sql, world_size=1, **options)
        assert ids_of(rows) == wanted, options
        assert all(row["v"] == row["id"] * 0.5 for row in rows)
    for world_size in (2, 3):
        for remainder in ("even", "uneven"):
            rows = sharded(
                sql, world_size=world_size, batch_size=16, split_rows=60, remainder=remainder
            )
            assert sorted(ids_of(rows)) == wanted
    rows = sharded(
        sql,
        world_size=2,
        batch_size=16,
        split_rows=60,
        num_workers=2,
        shuffle=True,
        remainder="even",
    )
    assert sorted(ids_of(rows)) == wanted


@pytest.mark.slow
def test_a_table_in_memory_is_sampled_like_one_file():
    session = tq.Session()
    session.register_table("t", made(1000, 0))
    sql = "SELECT id FROM t TABLESAMPLE BERNOULLI (20) REPEATABLE (3)"
    wanted = expected(20, 3, (1000,))
    assert session.sql(sql).to_arrow()["id"].to_pylist() == wanted
    for options in ({"split_rows": 7}, {"world_size": 3, "num_workers": 2, "remainder": "even"}):
        rows = sharded(sql, session=session, **{"world_size": 1, **options})
        assert sorted(ids_of(rows)) == wanted


def test_filters_and_limits_stay_above(tmp_path):
    path = table_of(tmp_path, "parquet")
    session = tq.Session()
    sample = f"'{path}' TABLESAMPLE BERNOULLI (25) REPEATABLE (11)"
    wanted = expected(25, 11)
    for where, keep in (
        ("id >= 650", lambda row: row >= 650),
        ("k = 3", lambda row: row % 7 == 3),
        ("id < 0", lambda row: False),
    ):
        sql = f"SELECT id FROM {sample} WHERE {where}"
        kept = [row for row in wanted if keep(row)]
        assert session.sql(sql).to_arrow()["id"].to_pylist() == kept
        assert session.sql(sql).count() == len(kept)
        assert ids_of(sharded(sql, session=session, world_size=1, split_rows=60)) == kept
    assert (
        session.sql(f"SELECT id FROM {sample} LIMIT 9").to_arrow()["id"].to_pylist() == wanted[:9]
    )
    found = session.sql(f"SELECT id FROM {sample} LIMIT 5 OFFSET 7").to_arrow()["id"].to_pylist()
    assert found == wanted[7:12]
    # A limit by order looks at the whole sample, not only at its first rows.
    found = session.sql(f"SELECT id FROM {sample} ORDER BY v DESC LIMIT 4").to_arrow()
    assert found["id"].to_pylist() == wanted[:-5:-1]
    found = session.sql(f"SELECT count(*) AS n, max(id) AS top FROM {sample}").to_arrow()
    assert found.to_pylist() == [{"n": len(wanted), "top": wanted[-1]}]


@pytest.mark.slow
def test_hive_directories_are_pruned_below_the_sample(tmp_path):
    for day in range(4):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(made(100, 100 * day), tmp_path / f"day={day}" / "a.parquet")
    session = tq.Session()
    session.register_parquet("t", tmp_path)
    sql = "SELECT id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (7) WHERE day = 2"
    wanted = [row for row in expected(50, 7, (100,) * 4) if 200 <= row < 300]
    assert session.sql(sql).to_arrow()["id"].to_pylist() == wanted
    splits = session.sql(sql).plan_shards().splits()
    assert {split.path.split("day=")[1] for split in splits} == {"2/a.parquet"}
    # A worker has only the file of its splits, and must not take it for the first one.
    rows = sharded(sql, session=session, world_size=1, num_workers=1, batch_size=10)
    assert ids_of(rows) == wanted


def test_shares_are_those_asked_for_and_seeds_independent():
    session = tq.Session()
    rows = 100_000
    session.register_table("t", pa.table({"id": np.arange(rows)}))

    def sample(percent, seed):
        sql = f"SELECT id FROM t TABLESAMPLE BERNOULLI ({percent}) REPEATABLE ({seed})"
        return set(session.sql(sql).to_arrow()["id"].to_pylist())

    assert sample(0, 7) == set()
    assert sample(100, 7) == set(range(rows))
    for percent in (0.5, 10, 62.5):
        share = percent / 100
        sigma = math.sqrt(rows * share * (1 - share))
        for seed in (0, 7, 2**64 - 1):
            assert abs(len(sample(percent, seed)) - rows * share) < 4 * sigma
    first, second = sample(10, 7), sample(10, 8)
    assert first != second
    sigma = math.sqrt(rows * 0.01 * 0.99)
    assert abs(len(first & second) - rows * 0.01) < 4 * sigma
    # With one seed a smaller sample lies within a larger one.
    assert sample(3, 7) < first < sample(50, 7)


def test_equal_rows_are_decided_apart():
    session = tq.Session()
    session.register_table("t", pa.table({"x": pa.array([1] * 10_000)}))
    found = session.sql("SELECT x FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (7)").count()
    assert abs(found - 5000) < 4 * 50


@pytest.mark.slow
def test_a_side_of_a_join_a_subquery_and_a_view_are_sampled(tmp_path):
    session = tq.Session()
    session.register_parquet("big", table_of(tmp_path, "parquet"))
    session.register_table("small", pa.table({"k": range(7), "w": [x * 10 for x in range(7)]}))
    small = [k for k in range(7) if keeps(60, 1, 0, k)]
    assert 0 < len(small) < 7
    wanted = [row for row in expected(40, 9) if row % 7 in small]
    for sql in (
        "SELECT b.id, s.w FROM big TABLESAMPLE BERNOULLI (40) REPEATABLE (9) AS b "
        "JOIN small AS s TABLESAMPLE BERNOULLI (60) REPEATABLE (1) ON b.k = s.k",
        "SELECT id, w FROM (SELECT * FROM big TABLESAMPLE BERNOULLI (40) REPEATABLE (9)) AS b "
        "JOIN small TABLESAMPLE BERNOULLI (60) REPEATABLE (1) ON b.k = small.k",
        "WITH b AS (SELECT id, k FROM public.big TABLESAMPLE BERNOULLI (40.0) REPEATABLE (9)), "
        "s AS (SELECT small.k, small.w FROM small TABLESAMPLE BERNOULLI (60 PERCENT) REPEATABLE (1)) "
        "SELECT id, w FROM b JOIN s ON b.k = s.k",
    ):
        found = session.sql(sql).to_arrow().to_pylist()
        assert sorted(ids_of(found)) == wanted
        assert all(row["w"] == row["id"] % 7 * 10 for row in found)
        for workers in (0, 2):
            rows = sharded(
                sql,
                session=session,
                world_size=3,
                batch_size=20,
                split_rows=60,
                num_workers=workers,
            )
            assert multiset(rows) == multiset(found)
    session.register_view("v", "SELECT * FROM big TABLESAMPLE BERNOULLI (40) REPEATABLE (9)")
    assert session.sql("SELECT id FROM v").to_arrow()["id"].to_pylist() == expected(40, 9)
    rows = sharded("SELECT id FROM v WHERE id > 100", session=session, world_size=2, num_workers=1)
    assert sorted(ids_of(rows)) == [row for row in expected(40, 9) if row > 100]


@pytest.mark.slow
def test_a_driving_scan_may_be_either_side(tmp_path):
    """The build side of a join is read whole, file by file: its rows have the same numbers there."""
    session = tq.Session()
    session.register_parquet("t", table_of(tmp_path, "parquet"))
    sql = (
        "SELECT a.id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (5) AS a "
        "JOIN t TABLESAMPLE BERNOULLI (50) REPEATABLE (6) AS b ON a.id = b.id"
    )
    wanted = sorted(set(expected(50, 5)) & set(expected(50, 6)))
    assert sorted(session.sql(sql).to_arrow()["id"].to_pylist()) == wanted
    for workers in (0, 2):
        rows = sharded(sql, session=session, world_size=2, split_rows=60, num_workers=workers)
        assert sorted(ids_of(rows)) == wanted


@pytest.mark.slow
def test_epochs_are_exact_and_resume(tmp_path):
    sql = f"SELECT id FROM '{table_of(tmp_path, 'parquet')}' TABLESAMPLE BERNOULLI (35) REPEATABLE (2)"
    wanted = expected(35, 2)

    def loaders(world_size, num_workers=0):
        made = [
            tq.create_dataloader(
                sql, rank=rank, world_size=world_size, num_workers=num_workers, batch_size=8,
                split_rows=60, shuffle=True, output_format="arrow",
            )[0]
            for rank in range(world_size)
        ]  # fmt: skip
        assert len({len(loader) for loader in made}) == 1
        return made

    consumed = []
    states = []
    for loader in loaders(2):
        for step, batch in enumerate(loader):
            consumed += batch["id"].to_pylist()
            if step == 6:
                states.append(loader.state_dict())
                break
    rest = []
    for loader in loaders(3):
        loader.load_state_dict(tq.merge_state_dicts(states))
        for batch in loader:
            rest += batch["id"].to_pylist()
    assert sorted(consumed + rest) == wanted


def test_traces_name_the_rows_that_were_sampled(tmp_path):
    path = table_of(tmp_path, "parquet")
    sql = f"SELECT id FROM '{path}' TABLESAMPLE BERNOULLI (35) REPEATABLE (2) WHERE k < 5"
    loader, dataset = tq.create_dataloader(
        sql, batch_size=32, split_rows=60, shuffle=True, output_format="arrow"
    )
    starts = np.cumsum([0, *SIZES])
    seen = 0
    for batch in loader:
        trace = dataset.trace()
        places = {one.split: int(one.path.rsplit("-", 1)[1][0]) for one in trace.ranges}
        behind = [
            starts[places[split]] + row
            for (split, _), row in zip(trace.positions, trace.physical_rows, strict=True)
        ]
        assert behind == batch["id"].to_pylist()
        seen += 1
    assert seen > 3


UNSUPPORTED = {"avro_v2", "variant_v3", "unknown_v3"}
"""Fixtures with types and formats that are refused; other tests show that."""


def readable():
    assert set(fixtures.names()) > UNSUPPORTED
    return [name for name in fixtures.names() if name not in UNSUPPORTED]


@pytest.mark.slow
@pytest.mark.parametrize("name", readable())
def test_the_sample_of_an_iceberg_table_is_the_same_however_it_is_cut(name):
    """Among the tables are ones with position deletes, deletion vectors, equality deletes, and ORC files."""
    session = tq.Session()
    session.register_iceberg_table("t", fixtures.open_fixture(name))
    every = session.sql("SELECT * FROM t").to_arrow().to_pylist()
    sql = "SELECT * FROM t TABLESAMPLE BERNOULLI (40) REPEATABLE (4)"
    wanted = session.sql(sql).to_arrow().to_pylist()
    sigma = math.sqrt(max(1, len(every)) * 0.24)
    assert abs(len(wanted) - 0.4 * len(every)) <= 4 * sigma
    assert not multiset(wanted) - multiset(every)
    assert session.sql(sql).count() == len(wanted)
    for options in ({"split_rows": 1}, {"split_rows": 7}, {"split_bytes": "1GiB"}):
        rows = sharded(sql, session=session, world_size=1, **options)
        assert multiset(rows) == multiset(wanted), options
    rows = sharded(sql, session=session, world_size=2, split_rows=5, num_workers=1, batch_size=4)
    assert multiset(rows) == multiset(wanted)
    full = session.sql(sql.replace("(40)", "(100)"))
    assert multiset(full.to_arrow().to_pylist()) == multiset(every)


@pytest.mark.parametrize(
    ("clause", "words"),
    [
        ("TABLESAMPLE BERNOULLI (10)", "add a seed: TABLESAMPLE BERNOULLI (10) REPEATABLE (7)"),
        ("TABLESAMPLE SYSTEM (10) REPEATABLE (7)", "TABLESAMPLE SYSTEM is not supported"),
        ("TABLESAMPLE BLOCK (10) REPEATABLE (7)", "TABLESAMPLE BLOCK is not supported"),
        ("TABLESAMPLE (10) REPEATABLE (7)", "TABLESAMPLE needs a method"),
        ("TABLESAMPLE BERNOULLI (10 ROWS) REPEATABLE (7)", "10 ROWS) is not supported"),
        ("TABLESAMPLE (BUCKET 1 OUT OF 4)", "BUCKET … OUT OF …) is not supported"),
        ("TABLESAMPLE BERNOULLI (101) REPEATABLE (7)", "must be a number in 0..=100"),
        ("TABLESAMPLE BERNOULLI (-1) REPEATABLE (7)", "must be a number in 0..=100"),
        ("TABLESAMPLE BERNOULLI (id) REPEATABLE (7)", "must be a number in 0..=100"),
        ("TABLESAMPLE BERNOULLI (10) REPEATABLE (1.5)", "the seed must be a whole number"),
    ],
)
def test_what_would_differ_between_processes_is_refused(clause, words):
    session = tq.Session()
    session.register_table("t", made(10, 0))
    with pytest.raises(tq.QueryError) as error:
        session.sql(f"SELECT * FROM t {clause}")
    assert words in str(error.value)
    assert (
        "BERNOULLI (10)" in str(error.value)
        or "for example (10)" in str(error.value)
        or "1.5" in clause
    )


def test_only_tables_are_sampled():
    session = tq.Session()
    session.register_table("t", made(10, 0))
    session.register_view("v", "SELECT * FROM t")
    sample = "TABLESAMPLE BERNOULLI (10) REPEATABLE (7)"
    for sql, what in (
        (f"SELECT * FROM (SELECT * FROM t) AS x {sample}", "a subquery"),
        (f"WITH x AS (SELECT * FROM t) SELECT * FROM x {sample}", '"x", a part of WITH'),
        (f"SELECT * FROM v {sample}", 'the view "v"'),
    ):
        with pytest.raises(tq.QueryError) as error:
            session.sql(sql)
        assert what in str(error.value)
        assert "sample the tables inside it" in str(error.value)
    with pytest.raises(tq.TableNotFoundError, match='unknown table "tt"; did you mean "t"'):
        session.sql(f"SELECT * FROM tt {sample}")
