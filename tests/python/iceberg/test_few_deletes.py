"""Promise 1 (docs/promises.md): files of which few rows are deleted have a reader of their own, which leaves rows out while it
decodes a column. No deleted row comes back, however rows are cut into splits and batches, and in whichever order."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import manifest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import support
import tensorquery as tq
from iceberg_by_hand import TableByHand, column, rows_of

ROWS, FILES = 6000, 2
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "word", StringType(), required=False),
    NestedField(3, "share", DoubleType(), required=False),
    NestedField(4, "kind", LongType(), required=False),
)


def stored(file, generator):
    """Rows of numbers, words and numbers of a dictionary, and values of which some are NULL."""
    ids = list(range(file * ROWS, (file + 1) * ROWS))
    return rows_of(
        (column("id", pa.int64(), 1), ids),
        (column("word", pa.string(), 2), [f"w{generator.randrange(50)}" for _ in ids]),
        (
            column("share", pa.float64(), 3),
            [generator.random() if generator.random() < 0.9 else None for _ in ids],
        ),
        (column("kind", pa.int64(), 4), [generator.randrange(9) for _ in ids]),
    )


def deleted_places(kind, generator):
    """The places of a file that are deleted, in order."""
    return {
        "scattered": sorted(generator.sample(range(ROWS), ROWS // 20)),
        "one run": list(range(1100, 1100 + ROWS // 10)),
        "both ends": [*range(7), *range(ROWS - 9, ROWS)],
    }[kind]


@pytest.fixture(params=["scattered", "one run", "both ends"])
def world(request, tmp_path):
    """A session with table t of two files of many small pages, and the rows that it must give."""
    generator = random.Random(request.param)
    table, expected = TableByHand(tmp_path / "t", SCHEMA), []
    for number in range(FILES):
        rows = stored(number, generator)
        path = table.path("parquet")
        pq.write_table(
            rows,
            path,
            row_group_size=4000,
            data_page_size=16384,
            write_batch_size=500,
            use_dictionary=["word", "kind"],
        )
        places = deleted_places(request.param, generator)
        deletes = rows_of(
            (column("file_path", pa.string(), 2147483546), [path] * len(places)),
            (column("pos", pa.int64(), 2147483545), places),
        )
        content = manifest.DataFileContent.POSITION_DELETES
        table.commit(table.file(path, record_count=ROWS), table.file(deletes, content=content))
        gone = set(places)
        expected += [row for place, row in enumerate(rows.to_pylist()) if place not in gone]
    session = tq.Session()
    session.register_iceberg_table("t", table.write())
    return session, expected


# Columns of numbers are read page by page where rows are shuffled, others as chunks.
@pytest.mark.parametrize("columns", ["id, kind, share", "id, word, share"])
@pytest.mark.parametrize("split_rows", [170, 100_000])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 64},
        {"batch_size": 8192},
        {"batch_size": 64, "shuffle": True},
        {"batch_size": 1000, "shuffle": True, "shuffle_buffer_size": 500},
        {"batch_size": 64, "shuffle": "global"},
    ],
    ids=["64", "8192", "shuffle", "small buffer", "global"],
)
def test_no_deleted_row_comes_back(world, options, split_rows, columns):
    session, expected = world
    query = session.sql(f"SELECT {columns} FROM t")
    shards = support.read_shards(query, 2, 0, split_rows=split_rows, **options)
    found = pa.Table.from_batches(support.flat(shards)).to_pylist()
    asked = [{name: row[name] for name in columns.split(", ")} for row in expected]
    assert sorted(found, key=lambda row: row["id"]) == asked
