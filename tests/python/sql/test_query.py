"""Queries: read-only SQL, columns and filters, and the methods of a lazy query other than loading."""

import datetime as dt
import json
import threading

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from pyiceberg_tables import make_lake
from query_table import TABLE, UTC, session_with_table
from rows import multiset, sharded
from tensorquery import _core


@pytest.fixture
def session(tmp_path):
    return session_with_table(tmp_path)


# --- columns and filters ---

FORMS = [
    ("n > 1", [("n", ">", 1)], pc.field("n") > 1),
    ("n <> 2", [("n", "!=", 2)], pc.field("n") != 2),
    ("n IN (1, 5)", [("n", "in", [1, 5])], pc.field("n").isin([1, 5])),
    ("s = 'it''s'", [("s", "=", "it's")], pc.field("s") == "it's"),
    ("s = 'say \"hi\"'", [("s", "==", 'say "hi"')], pc.field("s") == 'say "hi"'),
    ("s = 'x -- y'", [("s", "in", {"x -- y"})], pc.field("s") == "x -- y"),
    (
        "day >= DATE '2026-01-02'",
        [("day", ">=", dt.date(2026, 1, 2))],
        pc.field("day") >= dt.date(2026, 1, 2),
    ),
    (
        "at < TIMESTAMP '2026-01-01T02:00:00Z'",
        [("at", "<", dt.datetime(2026, 1, 1, 2, tzinfo=UTC))],
        pc.field("at")
        < pa.scalar(dt.datetime(2026, 1, 1, 2, tzinfo=UTC), pa.timestamp("us", "UTC")),
    ),
    ("ok = true", [("ok", "=", True)], pc.field("ok") == True),  # noqa: E712
    ('"Cap" <= 2', [("Cap", "<=", 2)], pc.field("Cap") <= 2),
    (
        "n = 1 OR (f > 1 AND n = 5)",
        [[("n", "=", 1)], [("f", ">", 1), ("n", "=", 5)]],
        (pc.field("n") == 1) | ((pc.field("f") > 1) & (pc.field("n") == 5)),
    ),
    ("f IS NULL", None, pc.field("f").is_null()),
    ("s LIKE 'x%'", None, pc.starts_with(pc.field("s"), "x")),
]


@pytest.mark.parametrize("forms", FORMS, ids=[sql for sql, _, _ in FORMS])
def test_three_forms_of_a_filter_keep_the_rows_that_pyarrow_keeps(session, forms):
    expected = pads.dataset(TABLE).to_table(filter=forms[2]).to_pylist()
    assert expected, "a filter that keeps nothing proves nothing"
    for form in forms:
        if form is None:
            continue
        assert multiset(sharded(table="t", session=session, filters=form)) == multiset(expected)
        assert session.table("t").select(filters=form).to_arrow().to_pylist() == expected


def test_columns_are_kept_in_the_order_asked_for(session):
    query = session.table("t").select(["Cap", "n"], [("f", ">", 0)])
    assert query.column_names == ["Cap", "n"]
    assert query.to_arrow()["Cap"].to_pylist() == [1, 4, 5]
    assert list(sharded(table="t", session=session, columns=["s"])[0]) == ["s"]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (iter, ["s", "n"]),
        (lambda names: (name for name in names), ["s", "n"]),
        (lambda names: map(str, names), ["s", "n"]),
        (np.array, ["s", "n"]),
        (dict.fromkeys, ["s", "n"]),
        (set, ["n", "s"]),
        (frozenset, ["n", "s"]),
    ],
)
def test_columns_are_any_names_and_those_of_a_set_are_sorted(session, make, names):
    query = session.sql("SELECT n, f, s FROM t")
    asked = ["s", "n"]
    assert query.select(make(asked)).column_names == names
    assert tq.mix([(query, 1), (query, 1)]).select(make(asked)).queries[1].column_names == names
    for read in ({"query": query}, {"table": "t", "session": session}):
        found, _ = tq.create_dataloader(**read, columns=make(asked), output_format="arrow")
        assert next(iter(found)).schema.names == names
    with pytest.raises(tq.ConfigError, match="selects nothing"):
        query.select(make([]))
    # These parts decide which query a state belongs to.
    assert query.select(make(asked))._parts() == query.select(names)._parts()


@pytest.fixture
def kinds(session, tmp_path):
    """The session with the same rows as a table in memory, a view and an Iceberg table, too."""
    session.register_table("memory", TABLE)
    session.register_view(
        "view", "SELECT * FROM t WHERE n IS NULL UNION ALL SELECT * FROM t WHERE n > 0"
    )
    made = make_lake(tmp_path).create_table("ns.t", TABLE.schema)
    made.append(TABLE)
    session.register_iceberg_table("lake", made.metadata_location)
    return session


def test_every_kind_of_table_is_narrowed(kinds):
    for table in ("t", "memory", "view", "lake"):
        found = kinds.table(table).select(["s", "n"], "n > 1 -- and no more")
        assert found.to_arrow().to_pydict() == {"s": ['say "hi"', None, "x -- y"], "n": [2, 3, 5]}


def test_a_filter_may_read_other_tables_and_points_of_their_history(kinds, tmp_path):
    pq.write_table(pa.table({"n": [3, 5]}), tmp_path / "few.parquet")
    [before] = kinds.table("lake").snapshots.values()
    for predicate in (
        f"n IN (SELECT n FROM '{tmp_path}/few.parquet')",
        "n IN (SELECT n FROM memory WHERE n > 2)",
        f"n IN (SELECT n FROM lake FOR VERSION AS OF {before} WHERE n > 2)",
    ):
        found = kinds.table("t").select(["n"], predicate)
        assert sorted(found.to_arrow()["n"].to_pylist()) == [3, 5]


def test_the_end_and_the_order_of_a_statement_stay_its_own(session):
    for end in (";", "; -- the end; really", " -- the end", "\n/* a; b */ ; ;"):
        query = session.sql(f"SELECT n, ';' AS c FROM t ORDER BY n DESC NULLS LAST{end}")
        found = query.select(["n"]).select(filters="n > 1").to_arrow()
        assert found["n"].to_pylist() == [5, 3, 2]
        mixed = tq.mix([(query, 1), (query.select(filters="n < 3"), 1)])
        assert mixed.select(["n"]).queries[1].to_arrow()["n"].to_pylist() == [2, 1]


def test_another_process_binds_the_same_layers(session, tmp_path):
    """A worker parses the texts of a query once each, and never SQL that was written around them."""
    pq.write_table(pa.table({"n": [3, 5]}), tmp_path / "few.parquet")
    query = session.sql("SELECT n, f, s FROM t; -- the end")
    query = query.select(["n", "f"], f"n IN (SELECT n FROM '{tmp_path}/few.parquet')")
    plan = query.select(filters=[("f", ">", 1)])._core.plan(128 << 20)
    text, blobs, foreign = plan.recipe()
    assert _core.Plan.from_recipe(text, blobs, foreign).fingerprint == plan.fingerprint
    assert json.loads(text)["query"] == [
        {"statement": "SELECT n, f, s FROM t; -- the end"},
        {
            "rows": {
                "columns": ["n", "f"],
                "predicate": f"n IN (SELECT n FROM '{tmp_path}/few.parquet')",
            }
        },
        {"rows": {"columns": None, "predicate": '"f" > 1 AND NOT isnan("f")'}},
    ]


@pytest.mark.parametrize(
    "narrowing",
    [
        {"columns": ["S", "n"]},
        {"columns": []},
        {"columns": "n"},
        {"filters": "n >"},
        {"filters": "n > 1) OR (true"},
        {"filters": "nn > 1"},
        {"filters": [("nn", ">", 1)]},
        {"filters": ""},
        {"columns": ["n"], "filters": "s = '\ud800'"},
    ],
    ids=str,
)
def test_what_cannot_be_narrowed_says_what_a_query_says(session, tmp_path, narrowing):
    with pytest.raises(tq.TensorQueryError) as expected:
        session.table("t").select(**narrowing)
    path = tmp_path / "t.parquet"
    for where in (
        {"path": path},
        {"path": path, "session": session},
        {"table": "t", "session": session},
    ):
        with pytest.raises(type(expected.value)) as found:
            tq.create_dataloader(**where, **narrowing)
        assert str(found.value) == str(expected.value)
    assert [table.name for table in session.tables] == ["t"]


def test_an_unknown_table_is_the_same_error_with_a_filter(session):
    messages = set()
    for narrowing in ({}, {"filters": "n > 1"}, {"columns": ["n"]}):
        with pytest.raises(tq.TableNotFoundError, match='did you mean "t"') as found:
            tq.create_dataloader(table="T", session=session, **narrowing)
        messages.add(str(found.value))
    assert len(messages) == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", ["path", "query", "mixture", "t", "memory", "view", "lake"])
def test_a_filter_may_read_what_the_session_knows(kinds, tmp_path, source, workers):
    kinds.register_udf("twice", lambda n: pc.multiply(n, 2), ["int64"], "int64")
    named = {
        "path": {"path": tmp_path / "t.parquet"},
        "query": {"query": "SELECT n, s FROM memory"},
        "mixture": {"query": tq.mix([(kinds.table("memory"), 1), (kinds.sql("SELECT * FROM t WHERE n = 1"), 1)], stop="all")},
    }  # fmt: skip
    loader, _ = tq.create_dataloader(
        **named.get(source, {"table": source}),
        filters="twice(n) > 4 AND n IN (SELECT n FROM t WHERE NOT ok)",
        columns=["n"],
        session=kinds,
        output_format="dict",
        num_workers=workers,
    )
    assert [n for batch in loader for n in batch["n"]] == [5]


def test_the_filter_of_a_query_reads_whatever_a_statement_may(kinds, tmp_path):
    """Tables that the query itself names stay pinned; those of the filter are looked up anew."""
    query = kinds.sql("SELECT n FROM t")
    pq.write_table(pa.table({"n": [2]}), tmp_path / "two.parquet")
    kinds.register_table("t", pa.table({"m": [1]}))
    kinds.register_table("fives", pa.table({"n": [5]}))
    kinds.register_view("larger", "SELECT n + 1 AS n FROM fives")

    def kept(filters, of=query):
        return of.select(filters=filters).to_arrow()["n"].to_pylist()

    assert kept("n IN (SELECT n FROM fives)") == [5]
    assert kept("n + 1 IN (SELECT n FROM larger)") == [5]
    assert kept("n IN (SELECT n FROM lake WHERE n < 3)") == [1, 2]
    assert kept(f"n IN (SELECT n FROM '{tmp_path}/two.parquet')") == [2]
    assert kept("n IN (WITH u AS (SELECT n FROM fives) SELECT n FROM u)") == [5]
    # Narrowed again, by a name that the first filter did not need.
    assert kept("n IN (SELECT n FROM fives)", query.select(["n"], "n > 1")) == [5]
    assert kept("n IN (SELECT n FROM t WHERE n < 3)") == [1, 2]
    kinds.register_view("of_t", "SELECT m AS n FROM t")
    with pytest.raises(tq.QueryError, match='"t" means two tables here'):
        query.select(filters="n IN (SELECT n FROM of_t)")
    with pytest.raises(tq.TableNotFoundError, match='unknown table "five"; did you mean "fives"'):
        query.select(filters="n IN (SELECT n FROM five)")
    with pytest.raises(tq.TableNotFoundError, match="nothing.parquet"):
        query.select(filters=f"n IN (SELECT n FROM '{tmp_path}/nothing.parquet')")


def test_functions_of_a_query_stay_those_of_it_in_its_filters(session):
    session.register_udf("f", lambda n: pc.add(n, 100), ["int64"], "int64")
    query = session.sql("SELECT n, f(n) AS y FROM t WHERE n IS NOT NULL")
    session.register_udf("f", lambda n: pc.add(n, 1000), ["int64"], "int64")
    session.register_udf("g", lambda n: pc.negate(n), ["int64"], "int64")
    assert query.select(filters="f(n) = y AND g(n) < -2").to_arrow()["n"].to_pylist() == [3, 5]


@pytest.mark.parametrize(
    ("filters", "advice"),
    [
        ("WHERE n < 2", "; leave WHERE out"),
        ("\n where n < 2", "; leave WHERE out"),
        ("n < 2 && ok", "; between conditions write AND, not &&"),
        ("(n < 2) & ok", "; between conditions write AND, not &"),
        ("n < 2 | n > 4", "; between conditions write OR, not |"),
        ("n < 2 || n > 4", "; between conditions write OR, not ||"),
        # Those that have another mistake.
        ('s = "b"', "; text is written in single quotes: 'b'"),
        ("n < 2 n > 4 -- where", None),
        ("nn | 1 > 2", None),
        ("n < 2 AND ok > '&&' || 3", "; between conditions write OR, not ||"),
        ("ok + n > 2 AND s = '&' AND \"s\" <> '|'", None),
    ],
)
@pytest.mark.parametrize("source", [{"table": "t"}, {"query": "SELECT * FROM t"}], ids=str)
def test_a_filter_of_another_language_is_told_how_to_write_it(session, source, filters, advice):
    with pytest.raises(tq.QueryError) as caught:
        tq.create_dataloader(session=session, filters=filters, **source)
    message = str(caught.value)
    if advice is None:
        assert "leave WHERE" not in message
        assert "between conditions" not in message
    else:
        assert message.endswith(advice)


def test_operators_of_bits_and_texts_are_for_those(session):
    query = session.table("t")
    assert query.select(["n"], "n & 1 = 1 AND n | 2 = 3").to_arrow()["n"].to_pylist() == [1, 3]
    assert query.select(["n"], "s || '%' = '100%%'").to_arrow().num_rows == 1


@pytest.mark.parametrize("source", [{"table": "t"}, {"query": "SELECT n FROM t"}], ids=str)
def test_a_state_belongs_to_what_its_filter_reads_too(source):
    def loader(kept, factor):
        session = tq.Session()
        session.register_table("t", pa.table({"n": range(20)}))
        session.register_table("kept", pa.table({"n": range(kept)}))
        session.register_udf("f", lambda n: pc.multiply(n, factor), ["int64"], "int64")
        filters = "n IN (SELECT n FROM kept) AND f(n) < 40"
        return tq.create_dataloader(session=session, filters=filters, batch_size=3, **source)[0]

    begun = loader(12, 2)
    assert next(iter(begun))["n"].tolist() == [0, 1, 2]
    state = begun.state_dict()
    same = loader(12, 2)
    same.load_state_dict(state)
    assert [n for batch in same for n in batch["n"].tolist()] == list(range(3, 12))
    for other, what in ((loader(13, 2), "kept"), (loader(12, 3), "the Python function f")):
        with pytest.raises(tq.CheckpointMismatchError, match=what):
            other.load_state_dict(state)


def test_a_filter_sees_the_output_columns_of_the_query(session):
    query = session.sql("SELECT n * 10 AS ten FROM t")
    assert query.select(filters="ten > 20").to_arrow()["ten"].to_pylist() == [30, 50]
    with pytest.raises(tq.QueryError, match='unknown column "n"'):
        query.select(filters="n > 2")


@pytest.mark.parametrize(
    "attack",
    [
        "1=1) UNION SELECT * FROM secret --",
        "1=1) UNION ALL (SELECT * FROM secret",
        "1=1; DROP TABLE t",
        "1=1; SELECT 1",
        "n > 1 /*",
        "n > 1 ORDER BY n",
        "n > 1 LIMIT 1",
        "n > 1)",
        "(n > 1",
        "'",
        '"',
        "",
        "   ",
        "-- only a comment",
        "SELECT * FROM t",
        "n = $1",
        "n = ?",
    ],
)
def test_a_filter_is_one_expression_and_nothing_else(session, attack):
    session.register_table("secret", TABLE)
    with pytest.raises((tq.QueryError, tq.ConfigError)):
        session.table("t").select(filters=attack)


@pytest.mark.parametrize("comment", ["n > 1 -- AND ok", "n /* ) */ > 1", "n > 1 --)"])
def test_comments_in_filters_hide_nothing(session, comment):
    assert session.table("t").select(filters=comment).count() == 3


def test_values_cannot_leave_their_literal(session):
    for value in ["' OR 1=1 --", "'; DROP TABLE t; --", "\\' OR ''='", '" OR ""="']:
        assert session.table("t").select(filters=[("s", "=", value)]).count() == 0
        assert session.table("t").select(filters=pc.field("s") == value).count() == 0
    with pytest.raises(tq.QueryError, match="does not exist"):
        session.table("t").select(filters=[('n" > 0 OR "n', ">", 1)])
    with pytest.raises(tq.QueryError, match="unknown column"):
        session.table("t").select(['n", (SELECT 1) AS "x'])


# --- what a query offers ---


def test_a_query_is_lazy_and_offers_schema_head_count_and_rows(session):
    query = session.sql("SELECT n, s FROM t WHERE n IS NOT NULL")
    assert query.schema == pa.schema([("n", pa.int64()), ("s", pa.string())])
    assert query.column_names == ["n", "s"]
    assert query.head(2).to_pylist() == [{"n": 1, "s": "it's"}, {"n": 2, "s": 'say "hi"'}]
    assert query.head(0).num_rows == 0
    assert query.head(100).num_rows == query.count() == 4
    assert query.to_arrow()["n"].to_pylist() == [1, 2, 3, 5]
    assert query.sql in repr(query)
    assert "n: Int64" in repr(query)


def test_a_query_speaks_the_arrow_stream_interface(session):
    query = session.sql("SELECT n FROM t")
    assert pa.table(query) == query.to_arrow()
    assert pa.RecordBatchReader.from_stream(query).read_all().num_rows == 5
    assert pa.schema(query).names == ["n"]
    # Each consumer gets a run of its own.
    assert pa.table(query).num_rows == pa.table(query).num_rows == 5


def test_explain_shows_both_plans(session):
    text = session.sql("SELECT n FROM t WHERE n > 3").explain()
    assert "DataSourceExec" in text
    assert "SplitScanExec" in text
    assert "Stage" not in text
    query = session.sql("SELECT sum(n) AS total FROM t")
    assert "Stage 1, which runs once: an aggregate" in query.explain()
    assert "not shardable: an aggregate" in query.explain(stage="never")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n, f FROM t WHERE s IS NOT NULL",
        "WITH a AS (SELECT n FROM t WHERE n > 1), b AS (SELECT n + 1 AS m FROM a) SELECT * FROM b",
        "SELECT x.n, y.m FROM t x JOIN (SELECT n AS m FROM t) y ON x.n = y.m",
        "SELECT n FROM t WHERE n IN (SELECT n FROM t WHERE f > 0)",
        "SELECT n FROM t WHERE n > (SELECT avg(n) FROM t)",
        "SELECT n FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.n = t.n AND u.f > 0)",
        "SELECT a.n, b.s FROM t a LEFT JOIN t b ON a.n = b.n AND b.n > 1",
        "SELECT n FROM t UNION ALL SELECT n + 100 FROM t WHERE n > 1",
        "SELECT CASE WHEN n > 2 THEN 'big' ELSE 'small' END AS size FROM t",
        'SELECT "Cap" AS c FROM t',
        "SELECT * FROM (SELECT * FROM (SELECT n, s FROM t) AS i WHERE n > 1) AS o",
    ],
)
def test_row_local_queries_against_duckdb(session, sql):
    t = TABLE  # noqa: F841  (DuckDB finds it by its name)
    expected = duckdb.sql(sql).to_arrow_table().to_pylist()
    assert expected
    query = session.sql(sql)
    assert multiset(query.to_arrow().to_pylist()) == multiset(expected)
    assert multiset(sharded(query, world_size=3, split_rows=1)) == multiset(expected)


@pytest.mark.slow
def test_views_and_views_of_views(session):
    session.register_view("big", "SELECT n, f FROM t WHERE n > 1")
    session.register_view("bigger", "SELECT n * 2 AS m FROM big WHERE n > 2")
    assert session.table("bigger").to_arrow()["m"].to_pylist() == [6, 10]
    assert multiset(sharded(table="bigger", session=session)) == multiset([{"m": 6}, {"m": 10}])
    loader, _ = tq.create_dataloader(table="bigger", session=session, num_workers=1)
    assert [batch["m"].tolist() for batch in loader] == [[6, 10]]
    assert [table.kind for table in session.tables] == ["view", "view", "parquet"]
    with pytest.raises(tq.QueryError, match='unknown column "zzz"'):
        session.register_view("broken", "SELECT zzz FROM t")


@pytest.mark.slow
def test_threads_make_queries_over_one_path_at_once(session, tmp_path):
    """Each lists the path anew, under the same name; more of them than the core has threads."""
    sql = f"SELECT n FROM '{tmp_path}/t.parquet'"
    made = []
    begin = threading.Barrier(600)

    def make():
        begin.wait()
        made.append(session.sql(sql).column_names)

    threads = [threading.Thread(target=make, daemon=True) for _ in range(begin.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert made == [["n"]] * begin.parties
