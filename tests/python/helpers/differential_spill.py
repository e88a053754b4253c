"""Statements of the differential tests over tables that do not fit the session's memory: what is sorted, grouped or joined is spilled."""

import pyarrow as pa

from differential_cases import Statement
from differential_tables import Table

MEMORY = "16MB"
"""Of the session: less than what the statements hold at once."""

ROWS = 10_000


def tables(rng):
    """Two tables of wide rows, the second with few of the first one's keys."""
    return [_table(rng, "t1", ROWS), _table(rng, "u1", ROWS // 8)]


def _table(rng, name, rows):
    null = [None] * max(1, rng.choice([0, rows // 50]))
    numbers = [*rng.choices(range(-(10**6), 10**6), k=rows - len(null)), *null]
    rng.shuffle(numbers)
    keys = rng.choices([None, *range(rows // 3)], k=rows)
    data = {
        "id": pa.array(range(rows), pa.int64()),
        "k": pa.array(keys, pa.int32()),
        "n": pa.array(numbers, pa.int64()),
        # Hardly one is like another, and each is long.
        "s": pa.array([f"{number}" + "spilled " * 40 for number in range(rows)]),
    }
    made = pa.table(data)
    step = -(-rows // 3)
    parts = [made.slice(at, step) for at in range(0, rows, step)]
    return Table(name, {"id": "int", "k": "int", "n": "int", "s": "text"}, parts)


def statements(rng):
    """Some statements that hold many rows at once."""
    cut = rng.randint(1, ROWS)
    join = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
    further = rng.choice(["", " AND t.n > u.n", " AND t.id <> u.id"])
    forms = [
        "SELECT s AS a, count(*) AS n, max(n) AS m FROM t1 GROUP BY s",
        "SELECT DISTINCT s AS a, k AS b FROM t1",
        f"SELECT id AS a, s AS b FROM t1 ORDER BY n NULLS LAST, id LIMIT {cut}",
        f"SELECT id AS a, s AS b FROM t1 ORDER BY s DESC OFFSET {cut}",
        "SELECT id AS a, row_number() OVER (ORDER BY s) AS r FROM t1",
        "SELECT id AS a, sum(n) OVER (PARTITION BY k ORDER BY s ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS r FROM t1",
        f"SELECT t.id AS a, u.id AS b, t.s AS c FROM t1 AS t {join} u1 AS u ON t.k = u.k{further}",
        f"SELECT count(*) AS n, count(t.id) AS m, count(u.id) AS l FROM t1 AS t {join} u1 AS u ON t.s = u.s{further}",
        "SELECT s AS a FROM t1 EXCEPT SELECT s FROM u1",
        "SELECT s AS a FROM t1 UNION SELECT s FROM u1",
        "SELECT k AS a, count(DISTINCT s) AS n FROM t1 GROUP BY k",
        "SELECT id AS a FROM t1 WHERE s IN (SELECT s FROM u1 WHERE n > 0)",
    ]
    return [Statement("spilling", sql) for sql in rng.sample(forms, 3)]
