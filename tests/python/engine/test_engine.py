"""Promise: DISTINCT, LIMIT, OFFSET, random() and joins that sort have right answers, and wide queries are planned
fast."""

import time

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from duckdb_judge import by_duckdb, rows, session_of

KEYED = {
    "t": pa.table(
        {
            "k": [1, 1, 2, 3, None, None],
            "v": [5, 6, 7, 8, 9, 9],
            "s": ["a", "b", "a", "c", None, "a"],
        }
    ),
    "u": pa.table({"k": [1, 1, 1, 2, None], "w": [9, 9, 8, 7, 6]}),
}
GROUPED = "(SELECT k, max(v) AS m FROM t GROUP BY k) AS q"
NUMBERED = "(SELECT row_number() OVER (ORDER BY v, s) AS r, s FROM t) AS q"

DISTINCT = [
    f"SELECT DISTINCT q.k FROM {GROUPED} JOIN u ON q.k = u.k",
    f"SELECT DISTINCT q.k FROM {GROUPED} LEFT JOIN u ON q.k = u.k",
    f"SELECT DISTINCT q.k FROM u RIGHT JOIN {GROUPED} ON q.k = u.k",
    f"SELECT DISTINCT q.k FROM {GROUPED} FULL JOIN u ON q.k = u.k",
    f"SELECT DISTINCT q.k FROM {GROUPED} CROSS JOIN u",
    f"SELECT DISTINCT q.k, q.m FROM {GROUPED} JOIN u ON q.k = u.k",
    f"SELECT count(*) FROM (SELECT DISTINCT q.k FROM {GROUPED} JOIN u ON q.k = u.k)",
    f"SELECT DISTINCT r FROM {NUMBERED} JOIN u ON u.k = q.r",
    f"SELECT r FROM {NUMBERED} JOIN u ON u.k = q.r UNION SELECT k FROM u",
    "SELECT DISTINCT q.s FROM (SELECT DISTINCT s FROM t) AS q CROSS JOIN u",
    "SELECT DISTINCT q.k, q.s FROM (SELECT k, s, count(*) AS n FROM t GROUP BY k, s) AS q JOIN u ON q.k >= u.k",
    "SELECT DISTINCT a.k FROM (SELECT k FROM t UNION SELECT k FROM u) AS a JOIN u ON a.k = u.k",
    # Groups by a key and by what it repeats with.
    f"SELECT q.k, count(*) FROM {GROUPED} JOIN u ON q.k = u.k GROUP BY q.k, q.m, u.w",
    f"SELECT count(*) FROM {GROUPED} LEFT JOIN u ON q.k = u.k GROUP BY q.k, q.m, u.w",
    f"SELECT u.w, sum(q.m) FROM {GROUPED} JOIN u ON q.k = u.k GROUP BY q.k, u.w",
]


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("sql", DISTINCT)
def test_distinct_above_what_repeats_a_key(tmp_path, sql, in_memory):
    session = session_of(tmp_path, KEYED, in_memory)
    assert rows(session, sql) == by_duckdb(sql, **KEYED)


@pytest.mark.parametrize("values", ["[1, 1]", "[2, NULL, 2]"])
def test_distinct_above_unnest(tmp_path, values):
    session = session_of(tmp_path, KEYED)
    sql = f"SELECT DISTINCT k FROM (SELECT k, unnest({values}) AS x FROM {GROUPED})"
    assert rows(session, sql) == [(1,), (2,), (3,), (None,)]
    sql = f"SELECT DISTINCT x FROM (SELECT k, unnest({values}) AS x FROM {GROUPED})"
    assert len(rows(session, sql)) == len(set(eval(values.replace("NULL", "None"))))


NULLS = {
    "t": pa.table(
        {
            "id": pa.array(range(12)),
            "x": pa.array([None, 5, 6, 7, None, 8, None, None, 9, 10, 11, 12], pa.int64()),
            "f": [
                float("nan"),
                5.0,
                6.0,
                7.0,
                float("nan"),
                8.0,
                None,
                float("nan"),
                9.0,
                10.0,
                11.0,
                12.0,
            ],
            "s": ["b", None, "c", "d", "e", None, None, "f", "g", None, "h", "i"],
        }
    )
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition",
    [
        "x > 1",
        "x <> 0",
        "f < 100",
        "s > 'a'",
        "s <> '' AND x > 1",
        "x IN (5, 6, 7, 9)",
        "NOT x < 5",
    ],
)
@pytest.mark.parametrize(
    "end", ["LIMIT 2", "LIMIT 3", "LIMIT 5", "LIMIT 2 OFFSET 1", "OFFSET 2", "LIMIT 4 OFFSET 4"]
)
def test_limits_above_filters_of_nulls_and_nan(tmp_path, condition, end):
    session = session_of(tmp_path, NULLS)
    sql = f"SELECT id FROM t WHERE {condition}"
    every = {row[0] for row in rows(session, sql)}
    # NaN is no number below another one.
    assert every == {row[0] for row in by_duckdb(sql, **NULLS)}
    got = [row[0] for row in rows(session, f"{sql} {end}")]
    words = end.split()
    skip = int(words[words.index("OFFSET") + 1]) if "OFFSET" in words else 0
    most = int(words[words.index("LIMIT") + 1]) if "LIMIT" in words else len(every)
    assert len(got) == len(set(got)) == min(max(len(every) - skip, 0), most)
    assert set(got) <= every
    assert session.sql(sql).head(5).num_rows == min(5, len(every))
    assert rows(session, f"SELECT count(*) FROM ({sql} {end})") == [(len(got),)]
    loader, _ = tq.create_dataloader(
        f"{sql} {end}",
        session=session,
        batch_size=2,
        output_format="dict",
        stage_dir=tmp_path / "stages",
    )
    assert sum(len(batch["id"]) for batch in loader) == len(got)


COUNTED = {
    "t": pa.table(
        {"id": range(20), "a": [(i * 7) % 20 for i in range(20)], "k": [i % 4 for i in range(20)]}
    )
}

ORDERED = [
    f"({inner})" for inner in (
        "SELECT id, a, k FROM t ORDER BY k DESC, id OFFSET 14",
        "SELECT id, a, k FROM t ORDER BY k DESC, id LIMIT 3 OFFSET 14",
        "SELECT id, a, k FROM t ORDER BY k DESC, id LIMIT 6",
        "SELECT id, a, k FROM (SELECT * FROM t ORDER BY a LIMIT 12) ORDER BY k, id OFFSET 5",
        "SELECT id, a, k FROM (SELECT id, a, k FROM t ORDER BY k, id OFFSET 3) ORDER BY a DESC LIMIT 7",
    )
]  # fmt: skip

ABOVE = [
    "SELECT count(*), sum(a), min(id) FROM {} AS q",
    "SELECT id FROM {} AS q ORDER BY a",
    "SELECT id FROM {} AS q ORDER BY a LIMIT 2",
    "SELECT k, sum(a) FROM {} AS q GROUP BY k",
    "SELECT id, sum(a) OVER (ORDER BY id) FROM {} AS q",
    "SELECT DISTINCT k FROM {} AS q",
    "SELECT q.id, t.a FROM {} AS q JOIN t ON q.id = t.id ORDER BY t.a",
    "SELECT id FROM {} AS q UNION ALL SELECT a FROM t WHERE a > 17",
    "SELECT id FROM t WHERE id IN (SELECT id FROM {} AS q)",
    "SELECT id FROM {} AS q WHERE a > 5",
]


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("inner", ORDERED)
@pytest.mark.parametrize("outer", ABOVE)
def test_an_order_with_a_limit_stays_below_other_orders(tmp_path, inner, outer, in_memory):
    session = session_of(tmp_path, COUNTED, in_memory)
    sql = outer.format(inner)
    assert rows(session, sql) == by_duckdb(sql, **COUNTED)


N = 20_000


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    session = tq.Session()
    path = tmp_path_factory.mktemp("many") / "t.parquet"
    pq.write_table(pa.table({"id": range(N), "k": [i % 3 for i in range(N)]}), path)
    session.register_parquet("t", path)
    session.register_table("u", pa.table({"k": [0, 1, 2], "w": [1, 2, 3]}))
    session.register_view("v", "SELECT id, k, random() AS r FROM t")
    return session


SHARES = [
    ("random() BETWEEN 0.4 AND 0.6", 0.2),
    ("random() NOT BETWEEN 0.4 AND 0.6", 0.8),
    ("coalesce(CASE WHEN random() < 0.5 THEN 1 END, 0) = 1", 0.5),
    ("nullif(round(random()), 1) IS NULL", 0.5),
    ("CASE CAST(floor(random() * 4) AS INT) WHEN 0 THEN 1 WHEN 1 THEN 1 WHEN 2 THEN 1 WHEN 3 THEN 1 ELSE 0 END = 1", 1.0),
    ("CASE CAST(floor(random() * 4) AS INT) WHEN 0 THEN 0 WHEN 1 THEN 1 WHEN 2 THEN 0 WHEN 3 THEN 0 END = 1", 0.25),
    ("CAST(floor(random() * 4) AS INT) IN (0, 1)", 0.5),
    ("id >= 0 AND random() < 0.5", 0.5),
    ("id < 0 OR random() < 0.5", 0.5),
    ("CASE WHEN id < 0 THEN false ELSE random() BETWEEN 0.4 AND 0.6 END", 0.2),
    ("greatest(random(), 0.3) = 0.3", 0.3),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "share"), SHARES)
def test_a_call_is_drawn_once_for_a_row(many, condition, share):
    assert many.sql(f"SELECT id FROM t WHERE {condition}").count() / N == pytest.approx(
        share, abs=0.03
    )
    selected = many.sql(
        f"SELECT sum(CASE WHEN {condition} THEN 1 ELSE 0 END) AS n FROM t"
    ).to_arrow()
    assert selected["n"][0].as_py() / N == pytest.approx(share, abs=0.03)


QUERIES_OF_R = [
    "(SELECT id, k, random() AS r FROM t) AS q",
    "(SELECT * FROM (SELECT id, k, random() AS r FROM t) AS p WHERE id >= 0) AS q",
    "(SELECT id, k, random() AS r FROM t UNION ALL SELECT id, k, random() FROM t) AS q",
    "(SELECT t.id, t.k, random() AS r FROM t JOIN u ON t.k = u.k) AS q",
    "(SELECT id, k, CASE WHEN id >= 0 THEN random() END AS r FROM t) AS q",
    "(SELECT max(id) AS id, max(k) AS k, random() AS r FROM t GROUP BY id) AS q",
    "(SELECT id, k, random() AS r FROM t ORDER BY id LIMIT 5000) AS q",
    "v AS q",
]


@pytest.mark.parametrize("q", QUERIES_OF_R)
def test_a_column_that_is_drawn_has_one_value(many, q):
    below = many.sql(f"SELECT id, r FROM {q} WHERE r < 0.7").to_arrow()["r"]
    assert len(below) > 0
    assert pc.max(below).as_py() < 0.7
    with_w = many.sql(
        f"WITH w AS (SELECT * FROM {q}) SELECT r FROM w WHERE r > 0.5 AND r < 0.7"
    ).to_arrow()["r"]
    assert pc.min(with_w).as_py() > 0.5
    assert pc.max(with_w).as_py() < 0.7
    two = many.sql(f"SELECT r AS a, r AS b, r + 0 AS c FROM {q}").to_arrow()
    assert two["a"].equals(two["b"])
    assert two["a"].equals(two["c"])
    joined = many.sql(
        f"SELECT q.r AS a, q.r AS b FROM {q} JOIN u ON q.k = u.k WHERE q.r < 0.7"
    ).to_arrow()
    assert joined["a"].equals(joined["b"])
    assert pc.max(joined["a"]).as_py() < 0.7
    ordered = many.sql(f"SELECT r FROM {q} ORDER BY r DESC LIMIT 100").to_arrow()["r"].to_pylist()
    assert ordered == sorted(ordered, reverse=True)
    unlike = many.sql(
        f"SELECT sum(CASE WHEN r < 0.5 THEN 1 ELSE 0 END) + sum(CASE WHEN r >= 0.5 THEN 1 ELSE 0 END) - count(r) AS n FROM {q}"
    )
    assert unlike.to_arrow()["n"][0].as_py() == 0


def test_names_of_drawn_columns_stay_as_they_were(many):
    assert many.sql("SELECT random(), id, k FROM t").schema.names == ["random()", "id", "k"]
    assert many.sql("SELECT * FROM (SELECT *, random() AS r FROM t)").schema.names == [
        "id",
        "k",
        "r",
    ]
    assert (
        many.sql("SELECT id FROM t WHERE random() < 2 ORDER BY random()").to_arrow().num_columns
        == 1
    )
    two = many.sql("SELECT random() AS a, random() AS b FROM t").to_arrow()
    assert not two["a"].equals(two["b"])


def test_groups_and_windows_of_drawn_values(many):
    grouped = many.sql(
        "SELECT CAST(floor(random() * 3) AS INT) AS g, count(*) AS n FROM t GROUP BY 1 ORDER BY 1"
    ).to_arrow()
    assert grouped["g"].to_pylist() == [0, 1, 2]
    assert sum(grouped["n"].to_pylist()) == N
    numbered = many.sql("SELECT id, row_number() OVER (ORDER BY random()) AS n FROM t").to_arrow()
    assert sorted(numbered["n"].to_pylist()) == list(range(1, N + 1))
    assert numbered.sort_by("id")["n"].to_pylist() != list(range(1, N + 1))
    distinct = many.sql("SELECT DISTINCT round(random()) AS g FROM t").to_arrow()
    assert sorted(distinct["g"].to_pylist()) == [0.0, 1.0]


def test_conditions_of_joins_that_draw(many):
    pairs = many.sql(
        "SELECT t.id FROM t JOIN u ON t.k >= 0 AND random() BETWEEN 0.4 AND 0.6"
    ).count()
    assert pairs / (3 * N) == pytest.approx(0.2, abs=0.02)
    matched = many.sql("SELECT t.id FROM t JOIN u ON t.k = u.k AND random() < 0.5").count()
    assert matched / N == pytest.approx(0.5, abs=0.03)
    for kind in ("LEFT", "RIGHT", "FULL"):
        with pytest.raises(
            tq.QueryError, match=r"as random\(\), is not supported in the condition of a .* JOIN"
        ):
            many.sql(f"SELECT t.id FROM t {kind} JOIN u ON t.k = u.k AND random() < 0.5")


def test_a_cte_that_draws_is_used_once(many):
    for sql in (
        "WITH w AS (SELECT id, random() AS r FROM t) SELECT a.r, b.r AS s FROM w AS a JOIN w AS b ON a.id = b.id",
        "WITH w AS (SELECT random() AS r FROM t) SELECT * FROM w WHERE r > (SELECT avg(r) FROM w)",
        "WITH w AS (SELECT random() AS r FROM t), x AS (SELECT * FROM w) SELECT r FROM x UNION ALL SELECT r FROM x",
    ):
        with pytest.raises(
            tq.QueryError,
            match=r"WITH [wx] calls a function that gives another value on every call.*used 2 times",
        ):
            many.sql(sql)
    assert (
        many.sql(
            "WITH w AS (SELECT id, random() AS r FROM t), x AS (SELECT * FROM w) SELECT r FROM x WHERE r < 2"
        ).count()
        == N
    )
    assert (
        many.sql(
            "WITH w AS (SELECT id FROM t) SELECT a.id FROM w AS a JOIN w AS b ON a.id = b.id"
        ).count()
        == N
    )


def test_a_volatile_python_function_is_called_once_for_a_row(tmp_path):
    session = session_of(tmp_path, {"t": pa.table({"id": range(100)})})
    called = []

    def noise(ids):
        called.extend(ids.to_pylist())
        assert all(each >= 50 for each in ids.to_pylist())
        return pa.array([float(len(called))] * len(ids))

    session.register_udf("noise", noise, ["int64"], "float64", "volatile")
    # Of a branch only the rows that take it.
    got = session.sql(
        "SELECT r AS a, r AS b FROM (SELECT CASE WHEN id >= 50 THEN noise(id) END AS r FROM t) WHERE r > 0 OR r IS NULL"
    )
    got = got.to_arrow()
    assert got["a"].equals(got["b"])
    assert got["a"].null_count == 50
    assert sorted(called) == list(range(50, 100))
    called.clear()
    assert (
        session.sql("SELECT id FROM t WHERE id >= 50 AND noise(id) BETWEEN -1 AND 1000").count()
        == 50
    )
    assert sorted(called) == list(range(50, 100))


JOINED = "FROM a {} JOIN b ON a.k = b.k AND a.v < b.v"


@pytest.mark.parametrize("kind", ["INNER", "LEFT", "RIGHT", "FULL"])
def test_joins_that_sort_know_null_conditions(tmp_path, kind):
    n, tables = 40_000, {}
    for seed, name in enumerate("ab"):
        rng = np.random.default_rng(seed)
        values = pa.array(rng.integers(0, 50, n).astype(np.int32), mask=rng.random(n) < 0.2)
        keys = pa.array(rng.integers(0, n // 3, n), mask=rng.random(n) < 0.05)
        tables[name] = pa.table(
            {"k": keys, "v": values, "id": np.arange(n), "p": [f"{i:060d}" for i in range(n)]}
        )
        pq.write_table(tables[name], tmp_path / f"{name}.parquet")
    sql = f"SELECT a.id AS x, b.id AS y, a.p AS p, b.p AS q {JOINED.format(kind)}"
    session = tq.Session(memory_limit="8MiB")
    for name in tables:
        session.register_parquet(name, tmp_path / f"{name}.parquet")
    loader, _ = tq.create_dataloader(
        sql,
        session=session,
        batch_size=8192,
        output_format="arrow",
        stage="always",
        stage_dir=tmp_path / "stages",
    )
    got = pa.Table.from_batches(list(loader)).select(["x", "y"])
    key = ["x", "y"]
    wanted = duckdb.connect()
    for name, table in tables.items():
        wanted.register(name, table)
    wanted = wanted.sql(f"SELECT a.id AS x, b.id AS y {JOINED.format(kind)}").to_arrow_table()
    order = [(name, "ascending") for name in key]
    assert got.sort_by(order).equals(wanted.sort_by(order).cast(got.schema))


def star(folder, tables):
    """A session with a table of facts, and the query that joins it with so many others."""
    session, fact = tq.Session(), {"v": list(range(40))}
    for i in range(tables):
        path = folder / f"dim{i}.parquet"
        pq.write_table(
            pa.table({f"k{i}": list(range(10)), f"w{i}": [f"w{i}-{j}" for j in range(10)]}), path
        )
        session.register_parquet(f"dim{i}", path)
        fact[f"f{i}"] = [(i + j) % 10 for j in range(40)]
    pq.write_table(pa.table(fact), folder / "fact.parquet")
    session.register_parquet("fact", folder / "fact.parquet")
    columns = ", ".join(f"w{i}" for i in range(tables))
    return session, f"SELECT v, {columns} FROM fact " + "{} " + "{}", fact


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", ","])
def test_a_star_of_twenty_tables_is_planned_in_two_seconds(tmp_path, kind):
    session, select, fact = star(tmp_path, 20)
    if kind == ",":
        joins = "".join(f", dim{i}" for i in range(20))
        where = "WHERE " + " AND ".join(f"f{i} = k{i}" for i in range(20))
    else:
        joins, where = " ".join(f"{kind} dim{i} ON f{i} = k{i}" for i in range(20)), ""
    sql = select.format(joins, where)
    tq.create_dataloader("SELECT v FROM fact", session=session, batch_size=8)
    start = time.perf_counter()
    loader, _ = tq.create_dataloader(sql, session=session, batch_size=8, output_format="dict")
    assert time.perf_counter() - start < 2
    got = {v: w for batch in loader for v, w in zip(batch["v"], batch["w7"], strict=True)}
    assert got == {v: f"w7-{fact['f7'][v]}" for v in range(40)}


@pytest.mark.parametrize(
    "source",
    [
        "(SELECT k, unnest(l) AS u FROM (SELECT k, array_agg(v) AS l FROM t GROUP BY k) a) q",
        "(SELECT a.k, t.v AS u FROM (SELECT k, count(*) AS n FROM t GROUP BY k) a JOIN t ON a.k = t.k) q",
    ],
)
def test_a_former_key_adds_no_columns_to_a_group(source):
    """The planner groups by all columns that a key determines, and still trusts keys that `unnest` and joins repeat."""
    table = pa.table({"k": [1, 1, 1, 2], "v": [5, 6, 7, 8]})
    session = tq.Session()
    session.register_table("t", table)
    for sql in (
        f"SELECT k, count(*) AS n FROM (SELECT k, u, min(u) AS m FROM {source} GROUP BY k, u) r GROUP BY k",
        f"WITH q AS (SELECT * FROM {source}) SELECT k, count(u) AS n FROM q GROUP BY k",
    ):
        rows = session.sql(sql).to_arrow().to_pylist()
        assert sorted((row["k"], row["n"]) for row in rows) == [(1, 3), (2, 1)]
