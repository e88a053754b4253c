"""Promise 8 (docs/promises.md): every clause that parses is honoured or refused by name; none is ignored.

An honoured clause has DuckDB's answer, or, where DuckDB lacks the clause, its answer to an equal query.
"""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from answers import assert_same_answer

TABLES = {
    "z": pa.table(
        {"x": [1, 2, 3, 4, None], "id": [1, 2, 2, None, 7], "s": ["a", "b", "b", None, "é"]}
    ),
    "a": pa.table({"id": [1, 2, 9, None], "y": [10, 20, 90, 0]}),
    "g": pa.table({"id": [1, 2, 9], "w": [5.5, None, 7.5], "s": ["a", None, "c"]}),
    "sales": pa.table(
        {"shop": ["n", "n", "s", None], "item": ["x", "y", "x", "x"], "qty": [1, 2, 3, 4]}
    ),
    "b": pa.table({"Key": [1, 2], "flag": [True, None]}),
}


@pytest.fixture(scope="module")
def duck():
    with duckdb.connect(config={"threads": 2}) as connection:
        for name, table in TABLES.items():
            connection.register(name, table)
        yield connection


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Tables of Parquet with one row in each row group, and of memory."""
    folder, session = tmp_path_factory.mktemp("clauses"), tq.Session()
    for name, table in TABLES.items():
        if name in ("z", "sales"):
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=1)
            session.register_parquet(name, folder / f"{name}.parquet")
        else:
            session.register_table(name, table)
    return session


def same(session, duck, sql, equal=None, ordered=False):
    """The answer is DuckDB's to the same text, or to an equal one; a count and two ranks agree with it."""
    query = session.sql(sql)
    actual, expected = query.to_arrow(), duck.sql(equal or sql).to_arrow_table()
    assert_same_answer(actual, expected, ordered=ordered)
    assert query.count() == expected.num_rows
    if expected.num_rows >= 2:
        shares = [
            tq.create_dataloader(query, rank=rank, world_size=2, output_format="arrow")[0]
            for rank in range(2)
        ]
        batches = [batch for share in shares for batch in share]
        assert_same_answer(pa.Table.from_batches(batches), expected)


JOINS = {
    # `*`, whatever the tables' names are.
    "SELECT * FROM z LEFT JOIN a USING (id)": None,
    "SELECT * FROM a LEFT JOIN z USING (id)": None,
    "SELECT * FROM z NATURAL LEFT JOIN a": None,
    "SELECT * FROM z JOIN a USING (id)": None,
    "SELECT * FROM z RIGHT JOIN a USING (id)": None,
    "SELECT * FROM z FULL JOIN a USING (id)": None,
    "SELECT * FROM z NATURAL FULL JOIN a": None,
    "SELECT * FROM z NATURAL JOIN g": None,
    "SELECT * FROM z FULL JOIN g USING (id, s)": None,
    "SELECT * EXCLUDE (x) FROM z FULL JOIN a USING (id)": None,
    "SELECT * REPLACE (id + 1 AS id) FROM z FULL JOIN a USING (id)": None,
    # The key alone.
    "SELECT id, y FROM z FULL JOIN a USING (id) WHERE id > 1": None,
    "SELECT id, count(*) AS n FROM z FULL JOIN a USING (id) GROUP BY id HAVING id IS NOT NULL": None,
    "SELECT id, sum(y) OVER (PARTITION BY id) AS s FROM z RIGHT JOIN a USING (id)": None,
    "SELECT max(id) AS m FROM z FULL JOIN (SELECT id + 100 AS id FROM a) q USING (id)": None,
    "SELECT id FROM a FULL JOIN g USING (id) ORDER BY id DESC NULLS LAST": None,
    # The keys of each side.
    "SELECT x, a.id AS i FROM z LEFT JOIN a USING (id) WHERE a.id IS NULL": None,
    "SELECT * FROM z LEFT JOIN a USING (id) WHERE a.id IS NULL": None,
    "SELECT * FROM z RIGHT JOIN a USING (id) WHERE z.id IS NULL": None,
    "SELECT * FROM z FULL JOIN a USING (id) WHERE z.id IS NULL OR a.id IS NULL": None,
    "SELECT id AS k, z.id AS i, a.id AS j, coalesce(a.id, -1) AS c FROM z FULL JOIN a USING (id)": None,
    "SELECT z.*, y FROM z LEFT JOIN a USING (id)": None,
    "SELECT a.*, x FROM z LEFT JOIN a USING (id)": None,
    "SELECT z.* FROM z FULL JOIN a USING (id)": "SELECT z.id, z.x, z.s FROM z FULL JOIN a USING (id)",
    "SELECT count(a.id) AS m, count(*) AS n, a.id IS NULL AS p FROM z LEFT JOIN a USING (id) GROUP BY a.id IS NULL ORDER BY "
    "a.id IS NULL": None,
    "SELECT q.id, count(*) AS n FROM (SELECT * FROM z FULL JOIN a USING (id)) q GROUP BY q.id": None,
    # Several joins.
    "SELECT id FROM z JOIN a USING (id) JOIN g USING (id)": None,
    "SELECT * FROM z FULL JOIN a USING (id) FULL JOIN g USING (id)": (
        "SELECT x, id, z.s, y, w, g.s AS s_1 FROM z FULL JOIN a USING (id) FULL JOIN g USING (id)"
    ),
    "SELECT id, a.id AS i, g.id AS j FROM z LEFT JOIN a USING (id) LEFT JOIN g USING (id)": None,
    "SELECT x, id, y, w FROM z JOIN (a FULL JOIN g USING (id)) USING (id)": None,
    "SELECT x, w FROM z LEFT JOIN a USING (id) JOIN g ON a.id = g.id": None,
    "SELECT t.x, u.y FROM z t LEFT JOIN a u USING (id), (SELECT 1 AS one) o WHERE u.id = o.one": None,
    # In other places.
    "SELECT x FROM z WHERE EXISTS (SELECT 1 FROM a FULL JOIN g USING (id) WHERE a.id = z.id)": None,
    "WITH c AS (SELECT * FROM z FULL JOIN a USING (id)) SELECT id, count(*) AS n FROM c GROUP BY id": None,
    "SELECT id FROM z FULL JOIN a USING (id) UNION ALL SELECT id FROM z RIGHT JOIN g USING (id)": None,
    # Joins that keep one side.
    "SELECT * FROM z SEMI JOIN a USING (id)": None,
    "SELECT * FROM z ANTI JOIN a USING (id)": None,
    "SELECT * FROM z SEMI JOIN a ON z.id = a.id AND a.y > 10": None,
    "SELECT x FROM z ANTI JOIN a ON z.id = a.id": None,
    "SELECT * FROM z LEFT SEMI JOIN a USING (id)": "SELECT * FROM z SEMI JOIN a USING (id)",
    "SELECT * FROM z LEFT ANTI JOIN a USING (id)": "SELECT * FROM z ANTI JOIN a USING (id)",
    "SELECT count(*) AS n FROM z NATURAL LEFT JOIN b": "SELECT count(*) AS n FROM z LEFT JOIN b ON true",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sql", JOINS)
def test_joins_by_columns_of_one_name(session, duck, sql):
    same(session, duck, sql, JOINS[sql])


SETS = {
    "SELECT id FROM z INTERSECT ALL SELECT id FROM a": None,
    "SELECT id, s FROM z EXCEPT ALL SELECT id, s FROM g": None,
    "SELECT id FROM z UNION ALL SELECT id FROM z EXCEPT ALL SELECT id FROM a": None,
    "(SELECT id FROM z UNION ALL SELECT 2) INTERSECT ALL (SELECT id FROM z UNION ALL SELECT id FROM a) ORDER BY id": None,
    "SELECT id FROM z EXCEPT ALL (SELECT id FROM a EXCEPT ALL SELECT 1)": None,
    "SELECT id + 0.5 AS f FROM z INTERSECT ALL SELECT id + 0.5 FROM a": None,
    "SELECT s, NULL AS n FROM z INTERSECT ALL SELECT s, NULL FROM z": None,
    "SELECT * FROM z INTERSECT ALL SELECT * FROM z": None,
    "SELECT count(*) AS n FROM (SELECT id FROM z EXCEPT ALL SELECT id FROM a LIMIT 2) q": None,
    "SELECT x FROM z WHERE x IN (SELECT id FROM z INTERSECT ALL SELECT id FROM a)": None,
    "SELECT id FROM z MINUS SELECT id FROM a": "SELECT id FROM z EXCEPT SELECT id FROM a",
    "SELECT x FROM z UNION SELECT y FROM a ORDER BY ALL DESC NULLS LAST": None,
}


@pytest.mark.parametrize("sql", SETS)
def test_set_operations(session, duck, sql):
    same(session, duck, sql, SETS[sql])


R = "WITH RECURSIVE "

RECURSIONS = {
    # Names, in the recursion too.
    R + "w(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM w WHERE n < 5) SELECT n FROM w": None,
    R + "w(n, m) AS (SELECT 1, 'a' UNION ALL SELECT n + 1, m || 'b' FROM w WHERE n < 4) SELECT m FROM w": None,
    R + "c(lvl, pay) AS (SELECT 1, 5 UNION ALL SELECT 2, 6 FROM c WHERE lvl = 1) SELECT pay FROM c": None,
    R + "c(p, q, r) AS (VALUES (1, 2, 3) UNION ALL SELECT q, r, p + 3 FROM c WHERE p < 9) SELECT r FROM c": None,
    R + "c(p, q) AS (SELECT 1, 1 UNION ALL SELECT p + 1, q * 2 FROM c WHERE p < 9) SELECT count(*) AS n FROM c": None,
    # NULL that the recursion makes.
    R + "r AS (SELECT 1 AS n, 0 AS d UNION ALL SELECT nullif(n + 1, 3), d + 1 FROM r WHERE d < 4) SELECT d FROM r WHERE n IS NULL": None,
    R + "r AS (SELECT 'a' AS s, 0 AS d UNION ALL SELECT NULL, d + 1 FROM r WHERE d < 2) SELECT count(s) AS a, count(*) AS b FROM r": None,
    R + "r AS (SELECT 1 AS n, 0 AS d UNION ALL SELECT NULL, d + 1 FROM r WHERE d < 2) SELECT coalesce(n, -1) AS n FROM r": None,
    R + "r AS (SELECT 1 AS n UNION SELECT CASE WHEN n < 3 THEN n + 1 END FROM r) SELECT n, n IS NULL AS o FROM r": None,
    # UNION keeps each row once, in all steps.
    R + "r AS (SELECT 1 AS n UNION SELECT n % 3 + 1 FROM r) SELECT n FROM r": None,
    R + "r AS (SELECT 1 AS n, 1 AS m UNION SELECT n % 3 + 1, m % 2 + 1 FROM r) SELECT n FROM r": None,
    R + "r AS (SELECT id FROM z UNION SELECT a.y FROM r JOIN a ON a.id = r.id) SELECT id FROM r": None,
    # Read twice, joined with tables, beside others.
    R + "r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT p.n, q.n AS m FROM r p JOIN r q ON p.n = q.n + 1": None,
    R + "r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT n FROM r WHERE n IN (SELECT n + 1 FROM r)": None,
    R + "r AS (SELECT id, y FROM a WHERE id = 1 UNION ALL SELECT z.x, r.y + 1 FROM r JOIN z ON z.id = r.id AND z.x > r.id) SELECT * FROM r": None,
    R + "b1 AS (SELECT 1 AS n UNION ALL SELECT 2), r AS (SELECT n FROM b1 UNION ALL SELECT n + 10 FROM r WHERE n < 20) SELECT n FROM r": None,
    R + "r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT x, n FROM z LEFT JOIN r ON n = x": None,
    # Parts without recursion beside RECURSIVE keep their clauses.
    R + "q AS ((SELECT 2 AS n UNION ALL SELECT 1) ORDER BY n LIMIT 1) SELECT n FROM q": "SELECT 1 AS n",
    R + "q AS (SELECT 2 AS n UNION ALL SELECT 1 ORDER BY n LIMIT 1) SELECT n FROM q": "SELECT 1 AS n",
    R + "q(m) AS (SELECT x FROM z UNION SELECT id FROM z) SELECT m FROM q": None,
}  # fmt: skip


@pytest.mark.parametrize("sql", RECURSIONS)
def test_recursive_parts_of_with(session, duck, sql):
    same(session, duck, sql, RECURSIONS[sql])


CLAUSES = {
    "WITH c AS MATERIALIZED (SELECT id FROM z) SELECT p.id FROM c p JOIN c q ON p.id = q.id": None,
    "WITH c(i) AS NOT MATERIALIZED (SELECT id FROM z), d AS materialized (SELECT i FROM c) SELECT i FROM d": None,
    "SELECT x FROM z ORDER BY x FETCH FIRST 2 ROWS ONLY": "SELECT x FROM z ORDER BY x LIMIT 2",
    "SELECT x FROM z ORDER BY x OFFSET 1 ROW FETCH NEXT ROW ONLY": "SELECT x FROM z ORDER BY x LIMIT 1 OFFSET 1",
    "SELECT max(x) AS m FROM (SELECT x FROM z ORDER BY x FETCH FIRST 2 ROWS ONLY) q": "SELECT 2 AS m",
    "FROM z": None,
    "SELECT count(*) AS n FROM (FROM z) q": None,
    "SELECT * FROM (FROM z) q JOIN (FROM a) r ON q.x = r.y / 10": (
        "SELECT q.*, r.id AS id_1, y FROM z q JOIN a r ON q.x = r.y / 10"
    ),
    "FROM z SELECT x": None,
    "FROM z ORDER BY x LIMIT 2": None,
    "SELECT qty FROM sales PREWHERE qty > 1 WHERE item = 'x' OR qty = 2": (
        "SELECT qty FROM sales WHERE qty > 1 AND (item = 'x' OR qty = 2)"
    ),
    "SELECT shop, sum(qty) AS q FROM sales GROUP BY shop WITH ROLLUP": (
        "SELECT shop, sum(qty) AS q FROM sales GROUP BY ROLLUP (shop)"
    ),
    "SELECT shop, item, count(*) AS q FROM sales GROUP BY shop, item WITH CUBE": (
        "SELECT shop, item, count(*) AS q FROM sales GROUP BY CUBE (shop, item)"
    ),
    "SELECT shop, item, count(*) AS q FROM sales GROUP BY 1, 2 WITH ROLLUP": (
        "SELECT shop, item, count(*) AS q FROM sales GROUP BY ROLLUP (shop, item)"
    ),
    "SELECT shop AS t, item, sum(qty) AS q FROM sales GROUP BY shop, item GROUPING SETS ((shop), (item), ())": (
        "SELECT shop AS t, item, sum(qty) AS q FROM sales GROUP BY GROUPING SETS ((shop), (item), ())"
    ),
    "SELECT shop, item, count(*) AS n FROM sales GROUP BY ROLLUP (1, 2)": None,
    "SELECT shop, item, count(*) AS n FROM sales GROUP BY GROUPING SETS ((2), (shop, 2))": None,
    "SELECT qty % 2 AS odd, count(*) AS n, sum(qty) + 1 AS s FROM sales GROUP BY ALL": None,
    "SELECT upper(shop) AS u, max(qty) AS m FROM sales GROUP BY ALL ORDER BY ALL": None,
    "SELECT shop, sum(qty) AS s, (SELECT count(*) FROM z) AS c FROM sales GROUP BY ALL": None,
    "SELECT count(*) AS n FROM sales GROUP BY ALL": None,
    "SELECT DISTINCT shop FROM sales ORDER BY ALL": None,
    "SELECT sum(x > 1) AS s, sum(s IS NULL) AS n, sum(id IN (1, 2)) AS i FROM z": None,
    "SELECT id, sum((x > 1 AND s = 'b') OR NOT x < 9) AS s FROM z GROUP BY id": None,
    "SELECT x, sum(x BETWEEN 2 AND 3) OVER (ORDER BY x) AS s FROM z": None,
    "SELECT sum(DISTINCT s LIKE 'b%') AS s, sum(CAST(x AS BOOLEAN)) AS b FROM z": None,
    "SELECT x FROM z WHERE EXISTS (SELECT FROM a WHERE a.id = z.id)": (
        "SELECT x FROM z WHERE EXISTS (SELECT 1 FROM a WHERE a.id = z.id)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("sql", CLAUSES)
def test_clauses_of_other_dialects(session, duck, sql):
    same(session, duck, sql, CLAUSES[sql])


W = "FROM sales WINDOW w AS (PARTITION BY item), v AS (w ORDER BY qty), u AS (v)"

WINDOWS = {
    f"SELECT qty, count(*) OVER (w ORDER BY qty) AS n {W}": (
        "SELECT qty, count(*) OVER (PARTITION BY item ORDER BY qty) AS n FROM sales"
    ),
    f"SELECT qty, sum(qty) OVER v AS n, count(*) OVER w AS m {W}": None,
    f"SELECT qty, sum(qty) OVER u AS n {W}": (
        "SELECT qty, sum(qty) OVER (PARTITION BY item ORDER BY qty) AS n FROM sales"
    ),
    f"SELECT qty, first_value(qty) OVER (v ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n {W}": None,
    f"SELECT qty, (SELECT max(x) FROM z) - row_number() OVER v AS n {W}": None,
    f"SELECT qty, sum(qty) OVER v AS s {W} ORDER BY sum(qty) OVER v, qty": (
        f"SELECT qty, sum(qty) OVER v AS s {W} ORDER BY s, qty"
    ),
    "SELECT qty FROM sales WINDOW W AS (PARTITION BY item ORDER BY qty) QUALIFY row_number() OVER w = 1": (
        "SELECT qty FROM sales QUALIFY row_number() OVER (PARTITION BY item ORDER BY qty) = 1"
    ),
    "SELECT q, n FROM (SELECT qty AS q, count(*) OVER w AS n FROM sales WINDOW w AS (ORDER BY qty)) t": None,
    "SELECT x, rank() OVER w AS r FROM z WINDOW w AS (ORDER BY id) UNION ALL SELECT y, rank() OVER w FROM a WINDOW w AS (ORDER BY id DESC NULLS LAST)": None,
}  # fmt: skip


@pytest.mark.parametrize("sql", WINDOWS)
def test_named_windows(session, duck, sql):
    same(session, duck, sql, WINDOWS[sql], ordered="ORDER BY sum" in sql)


NAMES = {
    "SELECT * FROM z JOIN a ON z.id = a.id": ["x", "id", "s", "id_1", "y"],
    "SELECT z.id, a.id, g.id FROM z JOIN a ON z.id = a.id JOIN g ON g.id = a.id": ["id", "id_1", "id_2"],
    "SELECT x, x, y AS x_1 FROM z, a": ["x", "x_2", "x_1"],
    "SELECT x + 1 AS n, id AS n FROM z": ["n", "n_1"],
    "SELECT count(*), count(*) FROM z": None,
    "SELECT * FROM (SELECT * FROM z JOIN a ON z.id = a.id) q": ["x", "id", "s", "id_1", "y"],
    "WITH c AS (SELECT * FROM z JOIN a ON z.id = a.id) SELECT * FROM c": ["x", "id", "s", "id_1", "y"],
    "WITH c AS (SELECT z.id, a.id FROM z, a) SELECT id_1, id FROM c": ["id_1", "id"],
    "SELECT z.id, a.id FROM z, a UNION ALL SELECT 1, 2": ["id", "id_1"],
    "SELECT z.id, a.id FROM z, a UNION SELECT 1, 2": ["id", "id_1"],
    "SELECT z.id, a.id FROM z, a EXCEPT ALL SELECT 1, 2": ["id", "id_1"],
    "SELECT z.id, a.id FROM z JOIN a ON z.id = a.id ORDER BY a.id DESC, z.x LIMIT 2": ["id", "id_1"],
    "SELECT i + j AS n FROM (SELECT a.id, z.id FROM a JOIN z ON a.id = z.id) q(i, j)": ["n"],
    "WITH c(i, j) AS (SELECT a.id, z.id FROM a JOIN z ON a.id = z.id) SELECT i + j AS n FROM c": ["n"],
    'SELECT k, "flag" FROM (SELECT "Key", flag FROM b) q(k)': ["k", "flag"],
    "SELECT k, flag FROM b AS c(k) WHERE c.k > 1": ["k", "flag"],
    "SELECT n.id FROM (SELECT a.id, z.id FROM a LEFT JOIN z ON a.id = z.id) n WHERE id_1 IS NULL": ["id"],
}  # fmt: skip


@pytest.mark.parametrize("sql", NAMES)
def test_columns_of_one_name_are_told_apart(session, duck, sql):
    table = session.sql(sql).to_arrow()
    assert len(set(table.column_names)) == len(table.column_names)
    assert NAMES[sql] in (None, table.column_names)
    found = duck.sql(sql).to_arrow_table()
    assert_same_answer(table, found.rename_columns(table.column_names))
    [batch] = tq.create_dataloader(
        f"SELECT * FROM ({sql}) AS q", session=session, output_format="arrow"
    )[0]
    assert batch.schema.names == table.column_names


def test_a_view_and_columns_of_one_name(session):
    session.register_view("both", "SELECT * FROM z JOIN a ON z.id = a.id")
    assert session.sql("SELECT id + id_1 AS n FROM both").to_arrow()["n"].to_pylist() == [2, 4, 4]
    assert session.table("both").select(columns=["id_1"], filters="id_1 > 1").count() == 2


REFUSED = {
    "SELECT * ILIKE 'x%' FROM z": r"\* ILIKE 'x%'",
    "SELECT z.* ILIKE 'x%' FROM z": "ILIKE",
    "SELECT * RENAME (x AS y) FROM z": "RENAME",
    "SELECT shop, sum(qty) FROM sales GROUP BY shop WITH TOTALS": "WITH TOTALS",
    "SELECT qty FROM sales PARTITION (p0)": "PARTITION",
    "SELECT qty FROM sales WITH (NOLOCK)": "hints",
    "SELECT qty FROM sales START WITH qty = 1 CONNECT BY PRIOR qty = qty - 5": "WITH RECURSIVE",
    "SELECT qty FROM sales FOR JSON AUTO": "FOR JSON",
    "SELECT qty FROM sales FOR UPDATE": "FOR UPDATE",
    "SELECT qty FROM sales SETTINGS max_threads = 1": "SETTINGS",
    "SELECT qty FROM sales FORMAT JSON": "FORMAT",
    "SELECT TOP 2 qty FROM sales": "LIMIT",
    "SELECT FROM sales": "without columns",
    "SELECT qty FROM sales LATERAL VIEW explode(x) t AS y": "LATERAL VIEW",
    "SELECT qty FROM sales DISTRIBUTE BY qty": "DISTRIBUTE BY",
    "SELECT qty FROM sales CLUSTER BY qty": "CLUSTER BY",
    "SELECT qty FROM sales SORT BY qty": "ORDER BY",
    "SELECT qty FROM sales ORDER BY qty FETCH FIRST 1 ROW WITH TIES": "WITH TIES",
    "SELECT qty FROM sales ORDER BY qty FETCH FIRST 10 PERCENT ROWS ONLY": "PERCENT",
    "SELECT qty FROM sales LIMIT 1 FETCH FIRST 1 ROW ONLY": "LIMIT beside FETCH",
    "SELECT qty FROM sales ORDER BY qty WITH FILL": "WITH FILL",
    "SELECT qty FROM sales LIMIT 1 BY shop": "LIMIT … BY",
    "SELECT * FROM z AS t(a INT, b TEXT, c TEXT)": "type beside a column's name",
    "WITH c AS (SELECT 1) FROM z SELECT 1 AS n": None,
    "SELECT * FROM z PIVOT (sum(x) FOR s IN ('a', 'b'))": "FILTER",
    "SELECT * FROM z CROSS APPLY a": "LATERAL",
    "SELECT abs(x) OVER (PARTITION BY id) AS r FROM z": "OVER",
    "SELECT abs(x) FILTER (WHERE x > 2) AS r FROM z": "FILTER",
    "SELECT upper(DISTINCT s) AS r FROM z": "DISTINCT",
    "SELECT abs(x ORDER BY x) AS r FROM z": "ORDER BY",
    "SELECT abs(x) WITHIN GROUP (ORDER BY x) AS r FROM z": "WITHIN GROUP",
    "SELECT count(a.*) AS n FROM z LEFT JOIN a ON z.id = a.id": r"a\.\*",
    "SELECT array_agg(x ORDER BY 2 DESC) AS l FROM z": "ORDER BY 2",
    "SELECT rank() IGNORE NULLS OVER (ORDER BY x) AS r FROM z": "IGNORE NULLS",
    "SELECT array_agg(x IGNORE NULLS) OVER (ORDER BY x) AS r FROM z": "IGNORE NULLS",
    "SELECT lag(DISTINCT x) OVER (ORDER BY x) AS r FROM z": "DISTINCT",
    "SELECT row_number() AS n FROM z": "needs a window",
    "SELECT sum(2)(x) AS n FROM z": "one pair of brackets",
    "SELECT array(SELECT x FROM z) AS l": "array_agg",
    "SELECT s COLLATE \"de\" AS n FROM z": "COLLATE",
    "SELECT CAST(x AS FLOAT(53)) AS f FROM z": "DOUBLE",
    "SELECT sum(x) OVER nowhere AS n FROM z": "nowhere is not defined",
    "SELECT sum(x) OVER (nowhere ORDER BY x) AS n FROM z": "nowhere is not defined",
    "SELECT sum(x) OVER (w PARTITION BY x) AS n FROM z WINDOW w AS (ORDER BY x)": "PARTITION BY",
    "SELECT sum(x) OVER (w ORDER BY x) AS n FROM z WINDOW w AS (ORDER BY id)": "ORDER BY",
    "SELECT sum(x) OVER (w) AS n FROM z WINDOW w AS (ORDER BY id ROWS 1 PRECEDING)": "frame",
    "SELECT sum(x) OVER w AS n FROM z WINDOW w AS (ORDER BY x), w AS ()": "defined twice",
    "SELECT x FROM z GROUP BY x HAVING sum(x) OVER w > 1 WINDOW w AS (ORDER BY x)": r"sum\(\) is not supported in this place",
    "SELECT x FROM z WHERE row_number() OVER (ORDER BY x) > 1": "not supported in this place.*QUALIFY",
    "FROM z |> LEFT JOIN a USING (id)": "USING",
    "FROM z |> AGGREGATE count(*) GROUP BY id ASC": "ORDER BY",
    "FROM z |> EXCEPT ALL (SELECT 1)": "EXCEPT",
    "FROM z |> DROP s": "DROP",
    "FROM z |> SELECT count(*) AS n": "not supported in this place",
    "SELECT a.id FROM z NATURAL JOIN a": "USING",
    "SELECT a.* FROM z NATURAL JOIN a": "USING",
    "SELECT * FROM z JOIN a USING (nowhere)": "nowhere",
    "SELECT * FROM z JOIN a ON z.id = a.id JOIN g USING (id)": "several columns",
    "SELECT x FROM z INTERSECT ALL SELECT x, id FROM z": "same number of columns",
    "SELECT x FROM z INTERSECT BY NAME SELECT x FROM z": "BY NAME",
    R + "r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r LIMIT 3) SELECT n FROM r": "LIMIT",
    R + "r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3 ORDER BY n) SELECT n FROM r": "ORDER BY",
    R + "r AS (WITH z AS (SELECT 7 AS x) SELECT x FROM z UNION ALL SELECT x + 1 FROM r WHERE x < 9) SELECT x FROM r": "WITH of its own",
    R + "r AS (SELECT 1 AS n UNION ALL SELECT p.n + 1 FROM r p JOIN r q ON true WHERE p.n < 3) SELECT n FROM r": "once",
    R + "r AS (SELECT 1 AS n UNION ALL SELECT x FROM z WHERE x IN (SELECT n + 1 FROM r)) SELECT n FROM r": "once",
    R + "r AS (SELECT n FROM r UNION ALL SELECT 1 AS n) SELECT n FROM r": "first rows",
    R + "r AS (SELECT 1 AS n EXCEPT SELECT n FROM r) SELECT n FROM r": "UNION",
    R + "r AS (SELECT n FROM r) SELECT n FROM r": "UNION ALL",
    R + "p AS (SELECT id FROM a2), a2 AS (SELECT 1 AS id) SELECT id FROM p": "after it",
    R + "r AS (SELECT 1 AS n UNION ALL SELECT n + 0.5 FROM r WHERE n < 3) SELECT n FROM r": "CAST",
    R + "r(a, b) AS (SELECT 1 UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT a FROM r": "columns",
}  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_honoured_is_refused_by_name(session, sql):
    with pytest.raises(tq.QueryError, match=REFUSED[sql]) as error:
        session.sql(sql).to_arrow()
    assert "Internal error" not in str(error.value)
    assert len(str(error.value)) < 500


def test_casts_that_a_recursion_needs_are_said_by_the_user(session):
    sql = R + "r AS (SELECT 1.0 AS n UNION ALL SELECT n + 0.5 FROM r WHERE n < 2.5) SELECT n FROM r"
    assert session.sql(sql).to_arrow()["n"].to_pylist() == [1.0, 1.5, 2.0, 2.5]
    sql = (
        R
        + "r AS (SELECT CAST(1 AS INT) AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT n FROM r"
    )
    assert session.sql(sql).to_arrow()["n"].to_pylist() == [1, 2, 3]
