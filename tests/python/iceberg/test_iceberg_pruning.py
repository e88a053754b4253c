"""A predicate finds the same rows whether or not statistics prune files, row groups and pages before it: the same
SQL over the table, and over its rows as Spark read them, in memory without any statistics."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import iceberg_fixtures as fixtures
import support
import tensorquery as tq

TYPES = """
    flag
    NOT flag
    flag IS NULL
    flag IS NOT TRUE
    i = -450
    i > 2000
    i < -490 OR i >= 690000
    i IN (-500, 10, 7900000, 3)
    i NOT IN (-500, 10, 7900000)
    i BETWEEN -100 AND 100
    NOT i BETWEEN -100 AND 100
    i <> -450
    l = 0
    l >= 60000000000
    l < -40 AND id > 3
    f > 3.5
    f < -1
    f = 0
    f <> 0
    f = CAST('-0.0' AS FLOAT)
    f = CAST('Infinity' AS FLOAT)
    isnan(f)
    NOT isnan(f)
    f <= CAST('-Infinity' AS FLOAT)
    d > 20
    d < 0
    d = 0
    isnan(d)
    d >= CAST('NaN' AS DOUBLE)
    d NOT IN (1, 2)
    d9 = -47.47
    d9 > 60.6
    d9 IN (1.01, 2.02, 99)
    d9 < -50
    d18 > 160000000
    d18 = -47000000.0047
    d18 <> -47000000.0047
    d38 > 1000000000000000000000
    d38 = 3
    d38 BETWEEN 0 AND 40
    day = DATE '1969-12-04'
    day < DATE '1970-01-01'
    day >= '1985-03-01'
    day IN (DATE '1969-12-04', DATE '1969-12-05')
    extract(year FROM day) = 1975
    moment < TIMESTAMP '1970-01-01 00:10:00'
    moment > '1970-08-01 12:00:00'
    moment = TIMESTAMP '1970-01-01 00:03:00'
    CAST(moment AS DATE) = DATE '1970-01-01'
    instant < TIMESTAMP '2024-01-01 03:00:00Z'
    instant >= '2024-01-03T09:00:00Z'
    instant > '2024-01-03T09:00:00+05:30'
    instant BETWEEN '2024-01-02' AND '2024-01-03 12:00:00'
    s = 'plain'
    s = 'it''s'
    s = 'double " quote'
    s = 'back\\slash'
    s = '100%'
    s = 'größe'
    s = ''
    s <> 'it''s'
    s > 'p'
    s < 'a'
    s >= '日本'
    s = 'xxxxxxxxxxxxxxxxtail'
    s > 'xxxxxxxxxxxxxxxx'
    s > 'xxxxxxxxxxxxxxxy'
    s LIKE 'x%'
    s LIKE '%e%'
    s LIKE 'under\\_%'
    s LIKE '100\\%'
    s LIKE 'gr__e'
    s NOT LIKE 'x%'
    s ILIKE 'PL%'
    s LIKE '😀%'
    s > '😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀'
    s >= '😁'
    starts_with(s, 'tab')
    s IN ('it''s', 'back\\slash', 'NULL')
    s NOT IN ('it''s', 'null')
    s IS NULL
    s IS NOT NULL AND i IS NULL
    s IS DISTINCT FROM 'plain'
    s IS NOT DISTINCT FROM NULL
    length(s) = 0
    raw = X'00'
    raw > X'00FF7F80'
    raw < X'00FF'
    raw IS NULL AND id < 100
    id = 125
    id > 129
    id IN (1, 31, 61, 91, 121, 200)
    id % 30 = 7
    i + l > 0
    (i > 0 AND s LIKE 'x%') OR (f < 0 AND NOT flag)
    NOT (i > 0 OR s = 'plain')
    coalesce(i, 0) = 0
    CASE WHEN flag THEN i > 0 ELSE l < 0 END
    NULL
    TRUE
    1 = 0
"""

PREDICATES = {
    "types": TYPES,
    # Metrics of a file are of the column that had the id when it was written, whatever its name is now.
    "evolution": """
        a = 30
        a > 3000000000
        a IS NULL
        aa = 'a again'
        aa IS NULL
        f < 2.5
        id = 36
        id BETWEEN 18 AND 37
        price = 0.05
        price > 20000000
        gone IS NULL
        gone = 'back40'
        old = 'old4'
        old LIKE 'third%'
        s['xx'] = 6
        s['xx'] > 3000000000
        s['z'] IS NULL
        s['y'] = 99
        s IS NULL
        l IS NULL
    """,
    # Predicates on partition columns of files that were written under another specification.
    "transforms": """
        id = 17
        id IN (3, 64, 101, 130, 150)
        i = 60
        i < 0
        i >= 300
        s = 'größe10'
        s LIKE 'größe%'
        s LIKE 'größte1%'
        s > 'größe9'
        s IS NULL
        d < -10.5
        d BETWEEN 0 AND 50
        d = 83.57
        day < DATE '1970-01-01'
        day = DATE '1971-07-24'
        day >= '1975-01-01'
        moment < TIMESTAMP '1970-01-01 00:00:00'
        moment >= TIMESTAMP '1970-01-01 04:00:00'
        instant < TIMESTAMP '2024-02-29 00:00:00Z'
        instant >= '2024-03-01T01:00:00Z'
        instant = '2024-02-29T02:15:00Z'
        raw = X'72617730'
        raw <> X'72617730'
    """,
    "void_v1": """
        area = 'r1'
        area IS NULL
        area <> 'r0'
        day = DATE '2023-12-31'
        day > DATE '2023-12-31'
        n = 51
        n < 5
        n IN (3, 52)
    """,
    "mor_v2": """
        region = 'a b/ü%2'
        region = 'moved'
        region IS NULL
        region <> 'north'
        region IN ('merged', 'north')
        region LIKE 'm%'
        id BETWEEN 290 AND 720
        id = 707
        x > 1000
        x IS NULL
        n = -1
        n IS NULL
        label = 'updated'
        label IS NULL
    """,
    "dv_v3": """
        id BETWEEN 190 AND 530
        id = 521
        label LIKE '%!'
        x < 0
        region IS NULL
    """,
    "imported": """
        area = 'a b=c%/d'
        area IS NULL
        day = DATE '2024-02-29'
        day > '2024-02-28'
        number = 1
        number = 5
        y < 3
        later IS NULL
        later = 'l'
        nested['aa'] = 33
        instant < TIMESTAMP '1970-01-01 00:00:00Z'
        instant > TIMESTAMP '1970-01-03 00:00:00Z'
    """,
    # No file from before the column holds it, and yet it is not null there.
    "defaults_v3": """
        i = 42
        i IS NULL
        i <> 42
        l = 3000000000
        l < 3000000000
        text = 'it''s "größe"'
        text IS NULL
        flag
        price = -12.34
        price > 0
        day = DATE '1969-12-30'
        moment = TIMESTAMP '2024-02-29 23:59:59.123456'
        instant IS NULL
        raw = X'00FF'
        must = -1
        must IS NULL
        must > 5
        late = 9
        late <> 9
        s['b'] = 'inner'
        s['b'] IS NULL
    """,
    # Bloom filters and page indexes of columns that traded names.
    "renamed_indexes": """
        a = 't3'
        a = 's3'
        b = 's3'
        b = 't3'
        a IN ('t3', 's3', 't420')
        b <> 's3'
        a > 't30'
        b BETWEEN 's1' AND 's2'
        id IS NULL
        id = 420
        a = 't12' AND b = 's1'
    """,
    "empty_structs": """
        s IS NULL
        s['b'] IS NULL
        s['b'] = 'new'
        o['inner'] IS NULL
        o['inner']['b'] IS NULL
        o['k'] = 2
        l IS NULL
        l[1]['keep'] = 7
        l[1]['b'] IS NULL
    """,
    "nested_partition": """
        s['k'] = 1
        s['k'] > 1
        s['at'] < TIMESTAMP '2024-01-02 00:00:00'
        s['k'] = 1 AND id < 20
    """,
    "v1_upgraded": """
        a = 's3'
        a <> 's3'
        b = 't4'
        id BETWEEN 40 AND 50
    """,
    # The key columns of equality deletes, and others.
    "eq_keys": """
        k = 3
        k IS NULL
        k = 4
        s IS NULL
        s = 's1'
        id IN (0, 1, 2, 3, 400)
        v > 100
    """,
    "eq_evolved": """
        kk = 7
        kk IS NULL
        k IS NULL
        late IS NULL
        late = 'l1'
        id < 60
    """,
    "eq_partitioned": """
        region = 'r1'
        region <> 'r1'
        k = 1
        k IN (2, 3)
        id IN (20, 80, 81)
    """,
    "orc_v2": """
        x = 'parquet'
        x IS NULL
        y = 0
        n > 3000000000
        n IS NULL
        id BETWEEN 190 AND 240
        region = 'a b/ü%2'
        region IS NULL
    """,
    "orc_v3": """
        flag
        f > 150
        price < 2.5
        day < DATE '1970-01-01'
        moment < TIMESTAMP '1970-01-01 00:00:00'
        instant >= '2024-01-05T00:00:00Z'
        s IS NULL
        s = 's100'
        raw = X'6237'
        nested['a'] = 77
    """,
    "names": """
        "Mixed Case" = 'P 1'
        "mixed case" > 50
        "a.b" = 36
        "größe" < 3
        "select" = 's7'
        "quote""d" <> 'q'
        s['X Y'] = 7
        s['x y'] = 9
    """,
    "types_java": """
        id > 70
        fx IS NULL
        fx = X'05FA00'
        u IS NULL
        t < arrow_cast('02:00:00', 'Time64(Microsecond)')
        t IS NULL
    """,
}
CASES = [
    (name, predicate.strip())
    for name, listed in PREDICATES.items()
    for predicate in listed.strip().splitlines()
]


@pytest.fixture(scope="module")
def sessions():
    """A session per table, with the table as t and its rows in memory as plain."""
    made = {}
    for name in PREDICATES:
        made[name] = tq.Session()
        made[name].register_iceberg_table("t", fixtures.open_fixture(name))
        made[name].register_table("plain", fixtures.truth(name))
    return made


def rows(session, table, predicate):
    return session.sql(f"SELECT * FROM {table} WHERE {predicate}").to_arrow()


EXPRESSIONS = [
    ("evolution", "id, s['xx'] AS x, s['y'] AS y, s['z'] AS z, l[1]['pp'] AS p, l[1]['p'] AS q"),
    (
        "evolution",
        "id, m['wide'] AS wide, cardinality(m) AS n, map_keys(m) AS k, cardinality(l) AS l",
    ),
    (
        "empty_structs",
        "id, s['b'] AS b, s IS NULL AS n, o['inner']['b'] AS i, o['k'] AS k, l[2] AS l",
    ),
    ("defaults_v3", "id, s['a'] AS a, s['b'] AS b, i + must AS sum, text || 'x' AS text"),
    ("imported", "id, nested['aa'] AS aa, nested['b'] AS b, area || '!' AS area, day, number"),
    ("orc_v3", "id, nested['a'] AS a, nested['l'] AS l, raw, instant"),
    ("names", """s['x y'] AS a, s['X Y'] AS b, "a.b" + "1st" AS c, "quote""d" AS d"""),
    ("nested_partition", "id, s['k'] AS k, s['at'] AS at"),
    ("renamed_indexes", "b, a"),
    ("types", "id, d38 * 2 AS d, date_trunc('day', instant) AS i, moment, length(s) AS n"),
]


@pytest.mark.parametrize(("name", "select"), EXPRESSIONS)
def test_expressions_over_columns(sessions, name, select):
    """Parts of nested columns among them, which a reader may ask a file for by themselves."""
    found, expected = (
        sessions[name].sql(f"SELECT {select} FROM {table}").to_arrow() for table in ("t", "plain")
    )
    fixtures.assert_same(found, expected)


@pytest.mark.parametrize(("name", "predicate"), CASES)
def test_a_predicate(sessions, name, predicate):
    session = sessions[name]
    fixtures.assert_same(rows(session, "t", predicate), rows(session, "plain", predicate))


@pytest.mark.parametrize(("name", "predicate"), CASES)
def test_a_predicate_through_shards(sessions, name, predicate):
    """Pruning, deletes and the borders of small splits together."""
    query = sessions[name].sql(f"SELECT * FROM t WHERE {predicate}")
    expected = rows(sessions[name], "plain", predicate)
    batches = support.flat(support.read_shards(query, 2, 2, batch_size=7, split_rows=9))
    found = pa.Table.from_batches(batches) if batches else expected.slice(0, 0)
    fixtures.assert_same(found, expected)


@pytest.mark.slow
def test_the_predicates_select(sessions):
    """Most select some rows and leave out others, else the test above would show little."""
    telling = [
        (name, predicate)
        for name, predicate in CASES
        if 0 < rows(sessions[name], "plain", predicate).num_rows < fixtures.truth(name).num_rows
    ]
    assert len(telling) > 0.8 * len(CASES)


def test_files_are_pruned(sessions):
    """Only the files are read whose bounds allow a row."""
    session = sessions["types"]
    read = {}
    for where in ("", "WHERE id = 125", "WHERE day > DATE '1990-01-01'", "WHERE s > '\U0010ffff'"):
        plan = session.sql(f"SELECT id FROM t {where}").plan_shards(world_size=1)
        read[where] = len({split.path for split in plan.splits()})
    assert list(read.values()) == [5, 1, 1, 1]


# ------------------------------------------------------------------------------------------------
# Random combinations, with the values that stand in the table and their neighbours.

COLUMNS = {
    "flag": ["TRUE", "FALSE"],
    "i": ["-450", "0", "2000", "2900000"],
    "l": ["-47", "0", "1000000", "69000000000"],
    "f": ["0", "3.5", "-6.42857", "CAST('NaN' AS FLOAT)", "CAST('-0.0' AS FLOAT)"],
    "d": ["0", "-15", "23.3", "CAST('NaN' AS DOUBLE)"],
    "d9": ["-47.47", "0", "65.65"],
    "d38": ["-47", "0", "30000000000000000000000"],
    "day": ["DATE '1969-12-31'", "DATE '1975-06-01'", "DATE '2000-01-01'"],
    "moment": ["TIMESTAMP '1970-01-01 00:03:00'", "TIMESTAMP '1970-04-01 00:00:00'"],
    "instant": ["TIMESTAMP '2024-01-01 00:21:00.5Z'", "TIMESTAMP '2024-01-03 12:00:00Z'"],
    "s": [
        "''",
        "'it''s'",
        "'back\\slash'",
        "'größe'",
        "'xxxxxxxxxxxxxxxxtail'",
        "'日本'",
        "'NULL'",
    ],
    "raw": ["X''", "X'00FF'", "X'00FF7F80DEAD'"],
    "id": ["0", "29", "30", "119", "125"],
}


@st.composite
def comparisons(draw):
    column = draw(st.sampled_from(list(COLUMNS)))
    value = st.sampled_from(COLUMNS[column])
    kind = draw(
        st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IN", "NOT IN", "NULL", "NOT NULL"])
    )
    if kind.endswith("NULL"):
        return f"{column} IS {kind}"
    if kind.endswith("IN"):
        return f"{column} {kind} ({', '.join(draw(st.lists(value, min_size=1, max_size=3)))})"
    return f"{column} {kind} {draw(value)}"


predicates = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda one: f"NOT ({one})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@given(predicate=predicates)
def test_any_predicate(sessions, predicate):
    session = sessions["types"]
    fixtures.assert_same(rows(session, "t", predicate), rows(session, "plain", predicate))
