"""Promise 4 (docs/promises.md): a staged part is computed on all cores, in a number of lanes that is the same on every machine, so that its
rows, their order and the last bit of each sum do not follow from the cores. DuckDB judges the rows, and one partition the bits.
"""

import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from torchless import HIDDEN

pytestmark = pytest.mark.filterwarnings("ignore:the data is sorted by")

# More than are dealt to lanes at once.
ROWS = 140_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Events with keys of many types, NULL among them; `x` has whole numbers, so that their sums are exact in any order."""
    rng = np.random.default_rng(11)

    def column(values, of, nulls=0.05):
        return pa.array(values, of, mask=rng.random(ROWS) < nulls)

    def any_of(values):
        return [values[number] for number in rng.integers(0, len(values), ROWS)]

    table = pa.table(
        {
            "id": np.arange(ROWS),
            "user": column(rng.integers(0, 900, ROWS), pa.int32()),
            "price": column(any_of([-0.0, 0.0, math.nan, math.inf, 1.5, -1.5]), pa.float64()),
            "word": column(any_of(["", "a", "ab", "größe", "a" * 40]), pa.string()),
            "blob": column(any_of([b"", b"\0", b"\0\0", b"x"]), pa.large_binary()),
            "flag": column(any_of([True, False]), pa.bool_()),
            "day": column(rng.integers(-400, 400, ROWS).astype("int32"), pa.date32()),
            "moment": column(rng.integers(-5, 5, ROWS), pa.timestamp("us")),
            "x": column(rng.integers(-1000, 1000, ROWS).astype("float64"), pa.float64()),
            "y": column(rng.normal(size=ROWS), pa.float64()),
        }
    )
    path = tmp_path_factory.mktemp("lanes") / "events.parquet"
    pq.write_table(table, path, row_group_size=30_000)
    return path


@pytest.fixture
def session(path):
    return over(path)


def over(path, **options):
    session = tq.Session(**options)
    session.register_parquet("events", path)
    return session


def table_of(query, session, folder, **options):
    """The rows of a stage of the query, in their order."""
    loader, dataset = tq.create_dataloader(
        query,
        session=session,
        stage_dir=folder,
        batch_size=8192,
        output_format="arrow",
        **options,
    )
    assert len(dataset.stages) == 1
    return pa.Table.from_batches(list(loader))


def multiset(table):
    """Its rows, with floats as their bits: NaN is not equal to itself."""

    def plain(column):
        if pa.types.is_floating(column.type):
            column = column.cast(pa.float64())
            return [
                None if value is None else np.float64(value).tobytes()
                for value in column.to_pylist()
            ]
        return [tuple(value) if isinstance(value, list) else value for value in column.to_pylist()]

    return Counter(zip(*(plain(column) for column in table.columns), strict=True))


LANES = {
    "groups": "SELECT user, count(*) AS n, sum(x) AS s, min(id) AS first FROM events GROUP BY user",
    "groups of two keys": "SELECT user, word, count(*) AS n, max(x) AS m FROM events GROUP BY user, word",
    "groups of bytes, days and moments": "SELECT blob, day, moment, count(*) AS n FROM events GROUP BY blob, day, moment",
    "groups of an expression": "SELECT date_trunc('month', day) AS month, flag, sum(x) AS s FROM events GROUP BY 1, 2",
    "distinct": "SELECT DISTINCT user, flag FROM events",
    "a union without duplicates": "SELECT user, word FROM events WHERE flag UNION SELECT user, word || '!' FROM events WHERE NOT flag",
    "several grouping sets": "SELECT user, word, count(*) AS n FROM events GROUP BY ROLLUP (user, word)",
    "groups of groups": "SELECT n, count(*) AS users FROM (SELECT user, count(*) AS n FROM events GROUP BY user) GROUP BY n",
    "a window": "SELECT id, sum(x) OVER (PARTITION BY user ORDER BY id) AS s FROM events",
    "a window of a key and nothing else": "SELECT id, count(*) OVER (PARTITION BY user, word) AS n FROM events",
    "windows of common keys": """
        SELECT id, lag(x) OVER (PARTITION BY user ORDER BY id) AS l, rank() OVER (PARTITION BY user, word ORDER BY moment) AS r FROM events
    """,
    "windows of other keys": """
        SELECT id, lag(x) OVER (PARTITION BY user ORDER BY id) AS l, max(id) OVER (PARTITION BY word, day) AS m FROM events
    """,
    "a window above groups": """
        SELECT user, n, row_number() OVER (PARTITION BY n ORDER BY user) AS r
        FROM (SELECT user, count(*) AS n FROM events GROUP BY user)
    """,
    "sequences": "SELECT user, array_agg(id ORDER BY x DESC NULLS LAST, id) AS ids, count(*) AS n FROM events GROUP BY user",
    "groups above a join": """
        SELECT e.user, count(*) AS n, sum(e.x + u.x) AS s FROM events AS e JOIN events AS u ON e.user = u.id GROUP BY e.user
    """,
    "groups above an outer join": """
        SELECT e.word, count(u.id) AS n, sum(e.x) AS s
        FROM events AS e LEFT JOIN (SELECT id FROM events WHERE id % 3 = 0) AS u ON e.user = u.id GROUP BY e.word
    """,
    "a window above a join of groups": """
        SELECT e.id, g.n, row_number() OVER (PARTITION BY g.n ORDER BY e.id) AS r
        FROM events AS e JOIN (SELECT user, count(*) AS n FROM events GROUP BY user) AS g ON e.user = g.user WHERE e.flag
    """,
    "groups of rows without a match": """
        SELECT user, count(*) AS n FROM events AS e
        WHERE NOT EXISTS (SELECT 1 FROM events AS o WHERE o.id = e.user AND o.flag) GROUP BY user
    """,
    "groups above a join by a comparison": """
        SELECT e.word, count(*) AS n FROM events AS e JOIN (SELECT DISTINCT day FROM events WHERE id < 40) AS d
        ON e.day < d.day GROUP BY e.word
    """,
    "an order of many ties": "SELECT id, word FROM events ORDER BY word",
    "the rows of an order": "SELECT id, x FROM events ORDER BY x, id",
}


@pytest.mark.parametrize("name", LANES)
def test_the_rows_are_those_of_duckdb(session, path, tmp_path, name):
    assert "DealExec: lanes=16" in session.sql(LANES[name]).explain()
    found = table_of(LANES[name], session, tmp_path)
    with duckdb.connect(config={"threads": 1}) as duck:
        duck.execute(f"CREATE VIEW events AS FROM '{path}'")
        wanted = duck.sql(LANES[name]).to_arrow_table()
    assert found.num_rows == wanted.num_rows > 1
    assert multiset(found) == multiset(wanted.cast(found.schema))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT user, sum(y) AS s, avg(y) AS a, stddev(y) AS d, corr(x, y) AS c FROM events GROUP BY user",
        "SELECT user, first_value(id ORDER BY y) AS f, max(y) AS m FROM events GROUP BY user",
        "SELECT user, first_value(id) AS first, array_to_string(array_agg(id), ',') AS ids FROM events WHERE id < 9000 GROUP BY user",
        "SELECT id, sum(y) OVER (PARTITION BY user ORDER BY moment, id) AS s FROM events",
        "SELECT price, count(*) AS n, sum(y) AS s FROM events GROUP BY price",
    ],
)
def test_each_group_has_its_rows_in_their_order(session, path, tmp_path, query):
    """So that sums are the same to the last bit as those of one partition, which a limit of memory asks for."""
    alone = over(path, memory_limit="4GiB")
    assert "DealExec" not in alone.sql(query).explain()
    found = table_of(query, session, tmp_path / "lanes")
    assert multiset(found) == multiset(table_of(query, alone, tmp_path / "alone"))


ORDERED = {
    "an order": ("SELECT id, user, x FROM events ORDER BY user DESC, id", ["user", "id"]),
    "an order that a window has already": (
        "SELECT user, id, row_number() OVER (PARTITION BY user ORDER BY id) AS r FROM events ORDER BY user, id",
        ["user", "id"],
    ),
    "an order of groups": (
        "SELECT user, sum(x) AS s FROM events GROUP BY user ORDER BY user",
        ["user"],
    ),
    "an order below a window without keys": (
        "SELECT user, id, row_number() OVER (ORDER BY user, id) AS r FROM events ORDER BY r",
        ["r"],
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_an_order_is_kept(session, path, tmp_path, name):
    query, keys = ORDERED[name]
    found = table_of(query, session, tmp_path)
    with duckdb.connect(config={"threads": 1}) as duck:
        duck.execute("SET default_null_order = 'nulls_last'")
        duck.execute(f"CREATE VIEW events AS FROM '{path}'")
        descending = "DESC" in query
        wanted = duck.sql(
            query.replace("DESC", "DESC NULLS FIRST") if descending else query
        ).to_arrow_table()
    assert found.select(keys).to_pylist() == wanted.select(keys).to_pylist()


def test_a_limit_ends_the_lanes(session, tmp_path):
    before = threading.active_count()
    found = table_of("SELECT DISTINCT id FROM events LIMIT 10", session, tmp_path)
    assert len(set(found["id"].to_pylist())) == 10
    assert threading.active_count() <= before + 2


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 / (id - 139999) AS k, count(*) AS n FROM events GROUP BY 1",
        "SELECT user, sum(1 / (id - 139999)) AS n FROM events GROUP BY user",
        "SELECT id, sum(1 / (id - 139999)) OVER (PARTITION BY user ORDER BY id) AS n FROM events",
        "SELECT 1 / (id - 139999) AS k FROM events ORDER BY k",
    ],
)
def test_an_error_in_the_last_row_is_the_error_of_the_query(session, tmp_path, query):
    """And never rows of the lanes that had ended without it."""
    with pytest.raises(tq.TensorQueryError, match="(?i)divi"):
        table_of(query, session, tmp_path)
    assert tq.list_stages(tmp_path) == []


ALONE = {
    "no groups": "SELECT count(*) AS n, sum(y) AS s FROM events",
    "a window without keys": "SELECT id, row_number() OVER (ORDER BY y, id) AS r FROM events",
    "the first rows of an order": "SELECT id FROM events ORDER BY y, id LIMIT 7",
    "keys without a hash": "SELECT [user] AS k, count(*) AS n FROM events GROUP BY [user]",
    "keys that are drawn": "SELECT random() < 0.5 AS k, count(*) AS n FROM events GROUP BY 1",
}


@pytest.mark.parametrize("name", ALONE)
def test_what_cannot_be_dealt_is_not(session, name):
    plan = session.sql(ALONE[name]).explain()
    assert "keys=" not in plan.split("Stage 1")[-1]


def test_a_recursive_query_ends(session, tmp_path):
    """Its second part is read anew in each round: a side of a join that is kept would be the first round's for ever."""
    query = """
        WITH RECURSIVE up AS (
            SELECT id, 0 AS step FROM events WHERE id = 1
            UNION ALL
            SELECT e.id, up.step + 1 FROM up JOIN events AS e ON e.id = up.id * 7 AND e.id < 100000
        )
        SELECT id, step FROM up
    """
    plan = session.sql(query).explain().split("Stage 1")[-1]
    assert "RecursiveQueryExec" in plan
    assert "AheadExec" not in plan
    found = table_of(query, session, tmp_path)
    assert found.to_pydict() == {"id": [7**step for step in range(6)], "step": list(range(6))}


def test_a_function_of_the_user_is_not_called_twice(session, tmp_path):
    called = []

    def tenth(users):
        called.append(len(users))
        return pa.array(
            [None if user is None else user // 10 for user in users.to_pylist()], pa.int32()
        )

    session.register_udf("tenth", tenth, ["int32"], "int32")
    found = table_of(
        "SELECT tenth(user) AS t, count(*) AS n FROM events GROUP BY tenth(user)", session, tmp_path
    )
    assert sum(found["n"].to_pylist()) == ROWS == sum(called)


PROGRAM = """
import json, os, sys
path, folder, cores = sys.argv[1:4]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
import tensorquery as tq
session = tq.Session()
session.register_parquet("events", path)
digests = []
for query in json.load(sys.stdin):
    _, dataset = tq.create_dataloader(query, session=session, stage_dir=folder, output_format="arrow")
    digests.append(dataset.stages[0].digest)
print(json.dumps(digests))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="Linux alone keeps a process to some cores"
)
def test_the_order_does_not_follow_from_the_cores(path, tmp_path):
    def digests(cores, number):
        program = subprocess.run(
            [
                sys.executable,
                "-c",
                HIDDEN + PROGRAM,
                path,
                tmp_path / f"{cores}-{number}",
                str(cores),
            ],
            input=json.dumps(list(LANES.values())),
            capture_output=True,
            text=True,
        )
        assert program.returncode == 0, program.stderr
        return json.loads(program.stdout)

    assert digests(1, 0) == digests(2, 1) == digests(2, 2)
