"""What is no query is refused with a message that says why and what to write; what cannot run split by split runs once."""

import pyarrow as pa
import pytest

import tensorquery as tq
from query_table import TABLE, session_with_table
from rows import sharded


@pytest.fixture
def session(tmp_path):
    return session_with_table(tmp_path)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE x AS SELECT 1",
        "CREATE VIEW x AS SELECT 1",
        "CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION 'x'",
        "DROP TABLE t",
        "ALTER TABLE t RENAME TO u",
        "TRUNCATE TABLE t",
        "INSERT INTO t SELECT * FROM t",
        "UPDATE t SET n = 1",
        "DELETE FROM t",
        "MERGE INTO t USING t u ON t.n = u.n WHEN MATCHED THEN DELETE",
        "COPY t TO 'x.parquet'",
        "COPY (SELECT 1) TO 'x.parquet'",
        "SET a = 1",
        "SHOW TABLES",
        "EXPLAIN SELECT * FROM t",
        "EXPLAIN ANALYZE SELECT * FROM t",
        "DESCRIBE t",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "EXECUTE p",
        "SELECT * INTO x FROM t",
        "WITH x AS (INSERT INTO t VALUES (1)) SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT * FROM t; DROP TABLE t",
        "",
        "   ",
        "-- nothing",
        "SELEC n FROM t",
        "SELECT n FROM t WHERE n = $1",
        "SELECT n FROM t WHERE n = ?",
    ],
)
def test_only_one_read_only_statement_is_a_query(session, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for refuse in (session.sql, lambda text: session.register_view("v", text)):
        with pytest.raises(tq.QueryError) as error:
            refuse(sql)
        assert not isinstance(error.value, tq.NotShardableError)
    assert session.table("t").count() == 5
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_a_statement_may_end_in_a_semicolon(session):
    assert session.sql("SELECT n FROM t;").count() == 5
    for end in (" ;\n", ";; -- done", " -- one;\n; /* two; */"):
        query = session.sql(f"SELECT n, ';' AS s FROM t{end}")
        assert query.select(filters="n > 1 AND s = ';'").count() == 3


@pytest.mark.parametrize("end", ["", " -- the least first", ";"])
def test_a_narrowed_query_keeps_its_order(session, tmp_path, end):
    query = session.sql(f"SELECT n, n % 2 AS odd FROM t WHERE n > 0 ORDER BY odd DESC, n DESC{end}")
    everything = query.to_arrow()["n"].to_pylist()
    narrow = query.select(["n"], "n > 1")
    assert narrow.to_arrow()["n"].to_pylist() == [n for n in everything if n > 1]
    loader, _ = tq.create_dataloader(
        query, columns=["n"], output_format="dict", stage_dir=tmp_path / "stages"
    )
    assert [n for batch in loader for n in batch["n"]] == everything


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nn FROM t", 'unknown column "nn"; did you mean "n"'),
        ("SELECT n FROM t WHERE dai = 1", 'unknown column "dai"; did you mean "day"'),
        ("SELECT Cap FROM t", 'did you mean "Cap"?.*quote the ones with capitals'),
        ("SELECT x.n FROM t", 'unknown table or alias "x" in "x.n".*in reach are t'),
        ("SELECT n + 1, t.n + 1 FROM t", "two output columns are named .*; rename one with AS"),
        ("SELECT n FROM t a JOIN t b ON a.n = b.n", 'the column "n" is ambiguous'),
        ("SELECT n + s FROM t", "Cannot coerce arithmetic expression"),
        ("SELECT foo(n) FROM t", "Invalid function 'foo'; did you mean"),
        ("t", "'t' alone is no statement: a table is read by table="),
        ("data.parquet", "files by path="),
    ],
)
def test_what_a_query_error_says(session, sql, message):
    with pytest.raises(tq.QueryError, match=message) as error:
        session.sql(sql)
    assert "Error during planning" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_with_a_point_in_its_name_is_quoted(session):
    session.register_table("a.b", pa.table({"n": [1]}))
    with pytest.raises(tq.TableNotFoundError, match='a name with a point is quoted: FROM "a.b"'):
        session.sql("SELECT * FROM a.b")
    assert session.sql('SELECT * FROM "a.b"').count() == 1


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM tt", 'unknown table "tt"; did you mean "t".*registered are t;'),
        ("SELECT * FROM nowhere.t", 'unknown table "nowhere.t"'),
        ("SELECT * FROM information_schema.tables", "unknown table"),
        ("SELECT * FROM 'none/such.parquet'", "there is no file or directory .*none/such.parquet"),
        ("SELECT * FROM 'none/*.parquet'", "none"),
    ],
)
def test_unknown_tables_and_paths(session, sql, message):
    with pytest.raises(tq.TableNotFoundError, match=message):
        session.sql(sql)


def test_a_table_name_with_capitals_needs_quotes(session):
    session.register_table("Users", TABLE)
    assert session.sql('SELECT n FROM "Users"').count() == 5
    assert session.table("Users").count() == 5
    with pytest.raises(tq.TableNotFoundError, match='quote the ones with capitals: FROM "Name"'):
        session.sql("SELECT n FROM Users")


NOT_ROW_LOCAL = [
    ("SELECT sum(n) AS x FROM t", "an aggregate"),
    ("SELECT DISTINCT n FROM t", "an aggregate"),
    ("SELECT n FROM t UNION SELECT n FROM t", "an aggregate"),
    ("SELECT n FROM t ORDER BY n", "ORDER BY"),
    ("SELECT n FROM t LIMIT 1", "LIMIT"),
    ("SELECT n FROM t OFFSET 1", "LIMIT or OFFSET"),
    ("SELECT row_number() OVER () AS x FROM t", "a window function"),
    ("SELECT a.n FROM t a FULL JOIN t b ON a.n = b.n", "FULL JOIN"),
    ("SELECT random() AS x FROM t", r"random\(\) is volatile"),
]


@pytest.mark.parametrize(("sql", "message"), NOT_ROW_LOCAL)
def test_what_is_not_row_local_names_the_operator_and_a_fix(session, sql, message):
    query = session.sql(sql)
    assert query.count() >= 0
    for shard in (tq.create_dataloader, tq.Query.plan_shards):
        with pytest.raises(tq.NotShardableError, match=message) as error:
            shard(query, stage="never")
        assert any(word in str(error.value) for word in ('stage="auto"', "literal"))


@pytest.mark.parametrize("sql", [sql for sql, _ in NOT_ROW_LOCAL])
def test_what_is_not_row_local_runs_once(session, sql, tmp_path):
    loader, dataset = tq.create_dataloader(
        sql, session=session, stage_dir=tmp_path / "stages", output_format="dict"
    )
    assert len(dataset.stages) == 1
    assert sum(len(next(iter(batch.values()))) for batch in loader) == session.sql(sql).count()


def test_a_part_that_runs_once_by_hand(session):
    session.register_table("once", session.sql("SELECT s, sum(n) AS total FROM t GROUP BY s"))
    assert len(sharded("SELECT * FROM once", session=session)) == 5
