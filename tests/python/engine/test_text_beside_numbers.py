"""Promise: quoted text compared with a number is parsed as a number; a text column compared with one is refused."""

import pyarrow as pa
import pytest

import tensorquery as tq


@pytest.fixture
def session():
    session = tq.Session()
    code = pa.array(["007", "7", "010"]).dictionary_encode()
    session.register_table(
        "t",
        pa.table(
            {"x": ["007", "7", "010"], "code": code, "n": [7, 10, 11], "f": [7.0, 10.5, 11.0]}
        ),
    )
    session.register_table("u", pa.table({"y": [7, 10]}))
    return session


@pytest.mark.parametrize(
    "condition",
    [
        "{x} > 6",
        "{x} = 7",
        "{x} <> 7.0",
        "7 >= {x}",
        "{x} IS DISTINCT FROM 7",
        "{x} BETWEEN 6 AND 11",
        "{x} NOT BETWEEN 6 AND 11",
        "{x} BETWEEN '6' AND 11",
        "7 BETWEEN {x} AND '9'",
        "n BETWEEN {x} AND 11",
        "{x} IN (6, 7)",
        "{x} NOT IN ('6', 7)",
        "n IN ({x})",
        "CASE {x} WHEN 7 THEN true ELSE false END",
        "greatest({x}, 7) = '7'",
        "least(n, {x}) IS NULL",
        "nullif({x}, 7) IS NULL",
        "{x} IN (SELECT y FROM u)",
        "{x} = n",
        "f < {x}",
        "({x}, n) = (7, 7)",
    ],
)
def test_text_of_rows_is_refused(session, condition):
    for x in ("x", "lower(x)"):
        with pytest.raises(tq.QueryError, match="compares a number with text"):
            session.sql(f"SELECT n FROM t WHERE {condition.format(x=x)}")


@pytest.mark.parametrize(
    "join",
    ["t JOIN u ON t.x = u.y", "t LEFT JOIN u ON u.y = t.x AND t.n > 1", "t JOIN u ON t.x < u.y"],
)
def test_joins_by_text_and_number_are_refused(session, join):
    with pytest.raises(tq.QueryError, match="compares a number with text"):
        session.sql(f"SELECT n FROM {join}")


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("n = '7'", [7]),
        ("n = '07'", [7]),
        ("'9' < n", [10, 11]),
        ("n BETWEEN '7' AND '10'", [7, 10]),
        ("n NOT BETWEEN '7' AND '10'", [11]),
        ("'10' BETWEEN n AND 10", [7, 10]),
        ("n IN ('7', '011')", [7, 11]),
        ("n NOT IN ('7', 10)", [11]),
        ("f = '10.5'", [10]),
        ("n < '10.5'", [7, 10]),
        ("CASE n WHEN '7' THEN true ELSE false END", [7]),
        ("greatest(n, '9') = 9", [7]),
        ("nullif(n, '7') IS NULL", [7]),
        ("x = '7'", [10]),
        ("CAST(x AS BIGINT) = 7", [7, 10]),
        ("x = CAST(n AS VARCHAR)", []),
    ],
)
def test_text_in_quotes_is_the_number_that_it_spells(session, condition, rows):
    assert (
        sorted(session.sql(f"SELECT n FROM t WHERE {condition}").to_arrow()["n"].to_pylist())
        == rows
    )


def test_a_union_of_text_and_numbers_is_text(session):
    found = session.sql("SELECT x AS r FROM t UNION ALL SELECT y FROM u").to_arrow()["r"]
    assert sorted(found.to_pylist()) == ["007", "010", "10", "7", "7"]
