"""Any SQL defines a training set: what all ranks deliver is DuckDB's answer to the same text, as a multiset.

The queries are those of `any_sql_queries.py`. Both engines read the same Parquet files and the same text. `answers.py` says what equal means.
"""

import re
from contextlib import nullcontext

import pytest

import tensorquery as tq
from answers import assert_same_answer
from any_sql_queries import OTHERS, TPCH, duck, is_ordered, loaded  # noqa: F401 (duck is a fixture)
from tensorquery.errors import NotShardableError
from tpch_data import TABLES, make_tpch

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
"""Queries that need no stage: row-local, or joins whose smaller side every rank can hold, even with aggregates in it."""

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
"""Queries that DataFusion 53 answers wrongly, shrunk."""


@pytest.fixture(scope="module")
def folder():
    return make_tpch()


@pytest.fixture(scope="module")
def tables(folder):
    session = tq.Session()
    for table in TABLES:
        session.register_parquet(table, folder / table)
    return session


def cases_of(path):
    """The cases that a file's first line names."""
    found = re.match(r"-- cases: (.+)\n", path.read_text())
    assert found, f"{path.name} must begin with a line: -- cases: …"
    return set(found[1].split(", "))


def test_there_are_queries_of_every_case():
    assert [path.stem for path in TPCH] == [f"q{number:02}" for number in range(1, 23)]
    assert len(OTHERS) >= 40
    found = set().union(*map(cases_of, OTHERS))
    assert found == CASES, (sorted(CASES - found), sorted(found - CASES))
    assert {path.stem for path in OTHERS} >= LOCAL


@pytest.mark.slow
@pytest.mark.parametrize("path", TPCH + OTHERS, ids=lambda path: path.stem)
def test_all_ranks_together_deliver_duckdbs_answer(duck, tables, path, tmp_path):  # noqa: F811
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


@pytest.mark.slow
@pytest.mark.parametrize("sql", ENGINE_IS_WRONG.values(), ids=ENGINE_IS_WRONG)
def test_what_the_engine_gets_wrong_is_right(duck, tables, sql):  # noqa: F811
    assert_same_answer(tables.sql(sql).to_arrow(), duck.sql(sql).to_arrow_table())
