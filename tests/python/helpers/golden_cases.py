"""The queries of the golden tests, and how a loader runs each.

Every query has a column `id`, which tells its rows apart, or nearly so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import iceberg_fixtures
import tensorquery as tq
from golden_files import INPUTS, GoldenFiles


@dataclass(frozen=True)
class Case:
    """One query and its loaders.

    Attributes:
        name: What the file of the expected text is called.
        query: Makes the query, or a mixture.
        ranks: How many ranks read it.
        step: The step after which each rank's state is taken.
        epochs: How many epochs are read.
        options: Options of the loader; batches have 7 rows where they do not say.
        identities: Whether fingerprints are the same everywhere; they are not for local files.
    """

    name: str
    query: Callable[[], Any]
    ranks: int = 1
    step: int = 2
    epochs: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    identities: bool = True


def session_of(*names):
    """A session with these folders of the inputs as tables, each under its own name."""
    session = tq.Session()
    for name in names:
        register = f"register_{_KINDS.get(name, 'parquet')}"
        session_options = {"filesystem": GoldenFiles()}
        if name == "tsv":
            session_options["delimiter"] = "\t"
        getattr(session, register)(name, f"{name}/", **session_options)
    return session


_KINDS = {
    "csv": "csv",
    "csv_gz": "csv",
    "tsv": "csv",
    "jsonl": "json",
    "jsonl_bz2": "json",
    "json_array": "json",
    "arrow": "arrow",
    "arrow_stream": "arrow",
    "avro": "avro",
    "orc": "orc",
}


def over(*names, sql):
    """A query over folders of the inputs."""
    return lambda: session_of(*names).sql(sql)


def filtered(make_filter, columns=None):
    """The Parquet table, narrowed by a filter in some form."""
    return lambda: session_of("parquet").table("parquet").select(columns, make_filter())


def lake(name, sql, **options):
    """A query over an Iceberg table of tests/fixtures/iceberg, as the table `lake`."""

    def query():
        session = tq.Session()
        session.register_iceberg_table("lake", iceberg_fixtures.open_fixture(name), **options)
        return session.sql(sql)

    return query


def _memory():
    session = tq.Session()
    batches = [
        pa.record_batch({"id": list(range(at, at + 8)), "v": [0.5] * 8}) for at in (0, 8, 16)
    ]
    session.register_table("held", pa.Table.from_batches(batches))
    return session.sql("SELECT id, v FROM held WHERE id % 5 <> 0")


def _view():
    session = session_of("parquet", "names")
    session.register_view("named", "SELECT p.id, n.name FROM parquet p JOIN names n USING (k)")
    return session.sql(
        "WITH few AS (SELECT id FROM named WHERE name <> 'two') SELECT id FROM few WHERE id > 4"
    )


def _mixture(stop):
    session = session_of("parquet", "csv", "avro")
    queries = [
        session.sql(f"SELECT id, CAST(k AS int) AS k FROM {name}")
        for name in ("parquet", "csv", "avro")
    ]
    return tq.mix(zip(queries, (0.5, 0.25, 0.25), strict=True), stop=stop)


def _damaged():
    session = tq.Session()
    paths = ["parquet/a.parquet", "damaged/footer.parquet", "damaged/page.parquet"]
    session.register_parquet("t", paths, filesystem=GoldenFiles(), on_error="skip")
    return session.sql("SELECT id FROM t", on_error="skip")


def _local():
    session = tq.Session()
    session.register_parquet("t", str(INPUTS / "parquet"))
    return session.sql("SELECT id FROM t WHERE v > 2")


EVENTS = over("parquet", sql="SELECT id, k FROM parquet WHERE id % 10 < 9")
FEW = {"batch_size": 2}
SMALL = {"split_rows": 8}
SHUFFLED = {**SMALL, "shuffle": True, "shuffle_buffer_size": 12}

CASES = [
    # Formats.
    Case("parquet", over("parquet", sql="SELECT * FROM parquet WHERE k <> 2 AND v > -1")),
    Case("parquet-3-ranks", EVENTS, ranks=3, options=SMALL),
    Case("local", _local, identities=False),
    Case(
        "hive",
        over("hive", sql="SELECT id, year, kind FROM hive WHERE year = 2025 OR kind IS NULL"),
    ),
    Case("csv", over("csv", sql="SELECT id, word FROM csv WHERE word <> 'a'")),
    Case(
        "csv-gz",
        over("csv_gz", sql="SELECT id, word FROM csv_gz"),
        ranks=3,
        options={"batch_size": 3},
    ),
    Case("tsv", over("tsv", sql="SELECT id, word FROM tsv"), ranks=3, options={"batch_size": 3}),
    Case("jsonl", over("jsonl", sql="SELECT id, k FROM jsonl WHERE k < 2")),
    Case("jsonl-bz2", over("jsonl_bz2", sql="SELECT id, tags[1] AS tag FROM jsonl_bz2")),
    Case(
        "json-array",
        over("json_array", sql="SELECT id, cardinality(tags) AS n FROM json_array"),
        ranks=3,
        options={"batch_size": 3},
    ),
    Case(
        "arrow",
        over("arrow", sql="SELECT id, v FROM arrow WHERE word IS NOT NULL"),
        ranks=3,
        options=SMALL,
    ),
    Case(
        "arrow-stream",
        over("arrow_stream", sql="SELECT id, v FROM arrow_stream WHERE k > 0"),
        options=SMALL,
    ),
    Case(
        "avro", over("avro", sql="SELECT id, k FROM avro WHERE word = 'zz' OR k = 1"), options=SMALL
    ),
    Case("orc", over("orc", sql="SELECT id, v FROM orc WHERE id BETWEEN 10 AND 50"), ranks=3),
    Case("memory", _memory, ranks=3, options={**SMALL, "batch_size": 3}),
    # Iceberg.
    Case(
        "iceberg-merge-on-read",
        lake("mor_v2", "SELECT * FROM lake"),
        ranks=3,
        options={"batch_size": 64},
    ),
    Case(
        "iceberg-deletion-vectors",
        lake("dv_v3", "SELECT id FROM lake WHERE id > 3"),
        options={"shuffle": True, "batch_size": 32},
    ),
    Case("iceberg-equality-deletes", lake("eq_keys", "SELECT * FROM lake")),
    Case("iceberg-evolution", lake("evolution", "SELECT * FROM lake"), ranks=3),
    # Queries.
    Case(
        "join",
        over("parquet", "names", sql="SELECT id, name FROM parquet LEFT JOIN names USING (k)"),
        ranks=3,
        options=SMALL,
    ),
    Case("view", _view),
    Case(
        "subquery",
        over(
            "parquet",
            "names",
            sql="SELECT id FROM parquet WHERE k NOT IN (SELECT k FROM names WHERE name > 'p')",
        ),
    ),
    Case(
        "union-all",
        over(
            "parquet",
            "csv",
            sql="SELECT id FROM parquet WHERE k = 0 UNION ALL SELECT id + 1000 FROM csv",
        ),
        ranks=3,
    ),
    Case(
        "unnest",
        over("vectors", sql="SELECT id, unnest(tokens) AS token, vector FROM vectors"),
        options={"split_rows": 6},
    ),
    # Stages.
    Case(
        "stage-aggregate",
        over(
            "parquet",
            sql="SELECT k AS id, count(*) AS n, sum(v) AS total FROM parquet WHERE v = v GROUP BY k ORDER BY k",
        ),
        options={"batch_size": 2},
    ),
    Case(
        "stage-join",
        over(
            "parquet",
            sql="SELECT p.id, m.n FROM parquet p JOIN (SELECT k, count(*) AS n FROM parquet GROUP BY k) m ON p.k = m.k",
        ),
        ranks=3,
        options=SHUFFLED,
    ),
    Case(
        "stage-window",
        over("csv", sql="SELECT id, row_number() OVER (ORDER BY id DESC) AS place FROM csv"),
        options=SHUFFLED,
    ),
    Case("stage-always", EVENTS, options={"stage": "always"}),
    # Samples and mixtures.
    Case(
        "sample",
        over("parquet", sql="SELECT id FROM parquet TABLESAMPLE BERNOULLI (40) REPEATABLE (7)"),
        options=SMALL,
    ),
    Case(
        "weighted-sample",
        over("vectors", sql="SELECT id, weight FROM vectors"),
        ranks=3,
        options={"shuffle": "global", "sample_weight": "weight"},
    ),
    Case(
        "mixture-first", lambda: _mixture("first"), ranks=3, options={**SHUFFLED, "batch_size": 8}
    ),
    Case("mixture-all", lambda: _mixture("all"), options={"batch_size": 8}),
    # One filter in three forms.
    Case(
        "filter-sql",
        filtered(lambda: "k IN (1, 3) AND v > 2.5 AND word <> 'a'"),
        ranks=3,
        step=1,
        options=FEW,
    ),
    Case(
        "filter-dnf",
        filtered(lambda: [("k", "in", [1, 3]), ("v", ">", 2.5), ("word", "!=", "a")]),
        options=FEW,
    ),
    Case(
        "filter-pyarrow",
        filtered(
            lambda: pc.field("k").isin([1, 3]) & (pc.field("v") > 2.5) & (pc.field("word") != "a"),
            ["id", "k"],
        ),
        options=FEW,
    ),
    # How rows are dealt and shuffled.
    Case("shuffle", EVENTS, ranks=3, epochs=2, options=SHUFFLED),
    Case("shuffle-partitions", EVENTS, options={**SHUFFLED, "partitions": 3, "batch_size": 6}),
    Case("shuffle-global", EVENTS, ranks=3, epochs=2, options={"shuffle": "global"}),
    Case("remainder-pad", EVENTS, ranks=3, options={**SHUFFLED, "remainder": "pad"}),
    Case(
        "remainder-uneven",
        EVENTS,
        ranks=3,
        options={**SMALL, "remainder": "uneven", "split_strategy": "round_robin"},
    ),
    Case("workers", EVENTS, step=3, options={**SMALL, "num_workers": 2}),
    Case(
        "workers-3-ranks", EVENTS, ranks=3, options={**SHUFFLED, "num_workers": 2, "batch_size": 4}
    ),
    Case("left-out", _damaged, options={"on_error": "skip", "shuffle": True}),
]
