"""Any SQL defines a training set: what all ranks deliver is DuckDB's answer to the same text, as a multiset.

The queries are those of TPC-H in `tpch/`, with the validation parameters, and further ones in `any_sql/`, whose first line names
the cases that they are. Both engines read the same Parquet files and the same text. `answers.py` says what equal means.
"""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import tensorquery as tq
from answers import assert_same_answer
from tensorquery.errors import NotShardableError
from tpch_data import TABLES, make_tpch

HERE = Path(__file__).parent
TPCH = sorted((HERE / "tpch").glob("*.sql"))
OTHERS = sorted((HERE / "any_sql").glob("*.sql"))

RANKS = (1, 3)

CASES = {
    "aggregate joined back", "anti join", "big join", "case and cast columns", "correlated filter",
    "cross join", "cube", "distinct", "distinct on", "empty result", "except", "except all", "exists",
    "filter above window", "filter and projection above an aggregate", "frames", "full join", "group by",
    "grouping sets", "having", "in", "intersect", "intersect all", "lag", "left join", "limit", "nested ctes",
    "not in", "not in with nulls", "ntile", "offset", "order by", "point in time", "qualify", "range join", "rank",
    "recursive cte", "right join", "rollup", "row_number per class", "running sum", "scalar subquery",
    "select without from", "self join", "semi join", "sequences", "sessions", "text columns", "union",
    "union all of local parts", "union all of non-local parts", "unnest above an aggregate", "values",
    "volatile functions",
}  # fmt: skip

LOCAL = {
    "anti_join", "big_join", "big_join_of_aggregate", "case_and_cast", "correlated_filter", "exists_or", "in_subquery",
    "left_join", "not_in", "range_join", "scalar_count", "scalar_subquery", "self_join", "semi_join", "target_encoding",
    "union_all_local", "values",
}  # fmt: skip
"""The queries that need no stage: row-local, or a join of which every rank can hold the smaller side, aggregates included."""

ENGINE_IS_WRONG = {
    "INTERSECT ALL keeps all copies": """
        SELECT x FROM (VALUES (1), (1), (2)) AS a (x)
        INTERSECT ALL
        SELECT y FROM (VALUES (1), (3)) AS b (y)
    """,
    "EXCEPT ALL takes all copies": """
        SELECT x FROM (VALUES (1), (1), (2)) AS a (x)
        EXCEPT ALL
        SELECT y FROM (VALUES (1), (3)) AS b (y)
    """,
    "NOT IN of an expression that makes nulls of a column without": """
        SELECT c_custkey FROM customer WHERE nullif(c_nationkey, 7) NOT IN (SELECT s_nationkey FROM supplier)
    """,
    "NOT IN inside of an OR": """
        SELECT x FROM (VALUES (1), (2)) AS a (x)
        WHERE x NOT IN (SELECT y FROM (VALUES (1), (NULL)) AS b (y)) OR x > 5
    """,
    "IN that is unknown": """
        SELECT x FROM (VALUES (1), (2)) AS a (x)
        WHERE (x IN (SELECT y FROM (VALUES (1), (NULL)) AS b (y))) IS NULL
    """,
}
"""What DataFusion 53 answers wrongly, shrunk."""


@pytest.fixture(scope="module")
def folder():
    return make_tpch()


@pytest.fixture(scope="module")
def duck(folder):
    with duckdb.connect(config={"threads": 2}) as connection:
        for table in TABLES:
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{folder}/{table}/*.parquet'")
        yield connection


@pytest.fixture(scope="module")
def tables(folder):
    session = tq.Session()
    for table in TABLES:
        session.register_parquet(table, folder / table)
    return session


def cases_of(path):
    """The cases that a file says it is."""
    found = re.match(r"-- cases: (.+)\n", path.read_text())
    assert found, f"{path.name} must begin with a line: -- cases: …"
    return set(found[1].split(", "))


def is_ordered(duck, sql):
    """Whether the statement as a whole has an ORDER BY, by DuckDB's parser."""
    tree = json.loads(duck.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])
    assert not tree["error"], tree
    [statement] = tree["statements"]
    return any(each["type"] == "ORDER_MODIFIER" for each in statement["node"]["modifiers"])


def loaded(query, world_size, rows, **options):
    """All rows that the ranks deliver, one after the other, where `rows` of them are expected."""
    # Equal steps are impossible where a rank would have no row.
    even = rows == 0 or rows >= world_size
    tables, steps = [], set()
    for rank in range(world_size):
        loader, _ = tq.create_dataloader(
            query,
            rank=rank,
            world_size=world_size,
            batch_size=4096,
            remainder="even" if even else "uneven",
            split_bytes="1MiB",
            output_format="arrow",
            **options,
        )
        batches = list(loader)
        steps.add(len(batches))
        tables.append(pa.Table.from_batches(batches, None if batches else query.schema))
    assert not even or len(steps) == 1, f"ranks take {steps} steps"
    assert not even or max(map(len, tables)) - min(map(len, tables)) <= 1
    return pa.concat_tables(tables)


def test_there_are_queries_of_every_case():
    assert [path.stem for path in TPCH] == [f"q{number:02}" for number in range(1, 23)]
    assert len(OTHERS) >= 40
    found = set().union(*map(cases_of, OTHERS))
    assert found == CASES, (sorted(CASES - found), sorted(found - CASES))
    assert {path.stem for path in OTHERS} >= LOCAL


@pytest.mark.parametrize("path", TPCH + OTHERS, ids=lambda path: path.stem)
def test_all_ranks_together_deliver_duckdbs_answer(duck, tables, path, tmp_path):
    sql = path.read_text()
    expected = duck.sql(sql).to_arrow_table()
    ordered = is_ordered(duck, sql)
    query = tables.sql(sql)
    stages = tmp_path / "stages"
    for world_size in RANKS:
        actual = loaded(query, world_size, expected.num_rows, stage_dir=stages)
        assert_same_answer(actual, expected, ordered=ordered and world_size == 1)
    # A stage is written where the query needs one, and only there.
    staged = stages.exists() and any(stages.iterdir())
    assert staged == (path.stem not in LOCAL)
    with pytest.raises(NotShardableError) if staged else nullcontext():
        tq.create_dataloader(query, stage="never")


@pytest.mark.parametrize("sql", ENGINE_IS_WRONG.values(), ids=ENGINE_IS_WRONG)
def test_what_the_engine_gets_wrong_is_right(duck, tables, sql):
    assert_same_answer(tables.sql(sql).to_arrow(), duck.sql(sql).to_arrow_table())
