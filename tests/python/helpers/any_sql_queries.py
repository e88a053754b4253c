"""Queries of every kind over the tables of TPC-H, and what loaders and DuckDB answer to them.

The queries are those of TPC-H in `corpora/tpch`, with the validation parameters, and further ones in `corpora/any_sql`, whose
first line names the cases that they are.
"""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import tensorquery as tq
from tpch_data import TABLES

_CORPORA = Path(__file__).parent / "corpora"
TPCH = sorted((_CORPORA / "tpch").glob("*.sql"))
OTHERS = sorted((_CORPORA / "any_sql").glob("*.sql"))


@pytest.fixture(scope="module")
def duck(folder):
    with duckdb.connect(config={"threads": 2}) as connection:
        for table in TABLES:
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM '{folder}/{table}/*.parquet'")
        yield connection


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
