"""Promise 9 (docs/promises.md): SQL and filters written by somebody else. Statements that write are refused by name, and deep
nesting is an error before a stack ends."""

import pyarrow as pa
import pytest

import tensorquery as tq


@pytest.fixture
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"id": range(10), "s": [str(n) for n in range(10)]}))
    return session


STATEMENTS = {
    "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'": "CREATE",
    "COPY (SELECT 1) TO '/tmp/x.csv'": "COPY",
    "SET datafusion.execution.batch_size = 1": "SET",
    "DROP TABLE t": "DROP",
    "INSERT INTO t VALUES (1, 'x')": "INSERT",
    "WITH w AS (DELETE FROM t) SELECT 1": "DELETE",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_are_refused_by_name_wherever_they_stand(session, statement):
    for attempt in (
        lambda: session.sql(statement),
        lambda: session.register_view("v", statement),
        lambda: tq.create_dataloader(statement, session=session),
    ):
        with pytest.raises(tq.QueryError, match=STATEMENTS[statement]):
            attempt()
    for filters in (
        statement,
        f"id > 1; {statement}",
        f"id > 1) ; {statement} --",
        f"({statement})",
    ):
        with pytest.raises(tq.QueryError):
            session.table("t").select(filters=filters)
    assert session.table("t").count() == 10


def test_a_filter_reads_nothing_that_the_query_does_not(session):
    """A subquery is an expression, too; but a path in it is a table that the query's author never named."""
    session.register_table("secret", pa.table({"k": [1]}))
    for filters in ("id IN (SELECT 1 FROM '/etc/passwd')", "EXISTS (SELECT * FROM nowhere)"):
        with pytest.raises(tq.TensorQueryError):
            session.table("t").select(filters=filters)


N = 100_000

CHAINS = {
    "and": "id > 1" + " AND id > 1" * N,
    "or": "id = 1" + " OR id = 1" * N,
    "plus": "id > 1" + " + 1" * N,
    "cast": "id" + "::BIGINT" * N + " > 1",
    "is null": "id" + " IS NULL" * N,
    "concatenation": "s" + " || 'x'" * N + " = 'x'",
    "brackets": "(" * N + "id > 1" + ")" * N,
    "minus": "id > " + "- " * N + "1",
    "not": "NOT " * N + "id > 1",
    "subscripts": "s" + "[1]" * N + " = 1",
}


@pytest.mark.parametrize("chain", CHAINS)
def test_chains_that_no_stack_holds_are_refused(session, chain):
    with pytest.raises(tq.QueryError):
        session.table("t").select(filters=CHAINS[chain])
    with pytest.raises(tq.QueryError):
        session.sql(f"SELECT id FROM t WHERE {CHAINS[chain]}")


STATEMENT_CHAINS = {
    "union": " UNION ALL ".join(["SELECT id FROM t"] * N),
    "join": "SELECT 1 AS x FROM t" + " CROSS JOIN t" * N,
    "commas": "SELECT 1 AS x FROM t" + ", t" * N,
    "tables of WITH": "WITH c0 AS (SELECT id FROM t)"
    + ", c1 AS (SELECT id FROM c0)" * N
    + " SELECT 1 AS x",
    "subqueries": "SELECT id FROM " + "(SELECT id FROM " * 1000 + "t" + ") AS q" * 1000,
}


@pytest.mark.parametrize("chain", STATEMENT_CHAINS)
def test_statements_that_no_stack_holds_are_refused(session, chain):
    with pytest.raises(tq.QueryError) as error:
        session.sql(STATEMENT_CHAINS[chain])
    assert len(str(error.value)) < 6000


@pytest.mark.slow
def test_what_generators_of_sql_write_is_no_chain(session):
    listed = ", ".join(map(str, range(5000)))
    assert session.table("t").select(filters=f"id IN ({listed})").count() == 10
    assert session.table("t").select(filters=[("id", "in", list(range(5000)))]).count() == 10
    alternatives = [[("id", "=", n), ("s", "=", str(n))] for n in range(300)]
    assert session.table("t").select(filters=alternatives).count() == 10
    cases = " ".join(f"WHEN id = {n} THEN {n}" for n in range(1500))
    assert session.sql(f"SELECT CASE {cases} END AS x FROM t").count() == 10
    columns = ", ".join(f"id + {n} AS c{n}" for n in range(1500))
    assert len(session.sql(f"SELECT {columns} FROM t").column_names) == 1500
    assert session.sql(" UNION ALL ".join(["SELECT id FROM t"] * 100)).count() == 1000


@pytest.mark.slow
def test_an_error_does_not_repeat_what_is_huge(session):
    """An error that quoted a name of many megabytes copied it in each layer, until the interpreter had no memory left."""
    huge = "x" * 4_000_000
    for attempt in (
        lambda: session.table("t").select(filters=f"'{huge}"),
        lambda: session.table("t").select(filters=f'"{huge}" > 1'),
        lambda: session.sql(f'SELECT "{huge}" FROM t'),
    ):
        with pytest.raises(tq.QueryError) as error:
            attempt()
        assert len(str(error.value)) < 20_000
