"""A table for the tests of Python functions in SQL, and how they read it."""

import pyarrow as pa

import tensorquery as tq

ROWS = 240
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "small": pa.array([i % 7 for i in range(ROWS)], pa.int16()),
        "x": pa.array([None if i % 5 == 0 else i / 2 for i in range(ROWS)], pa.float64()),
        "s": pa.array([None if i % 11 == 0 else "w" * (i % 4) for i in range(ROWS)]),
        "l": pa.array([[i, None, -i][: i % 4] for i in range(ROWS)], pa.list_(pa.int64())),
        "r": pa.array([{"a": i, "b": str(i)} for i in range(ROWS)]),
        "d": pa.array([f"c{i % 3}" for i in range(ROWS)]).dictionary_encode(),
    }
)


def session_over(folder):
    """A session with the table as files, `t`, and in memory, `m`."""
    session = tq.Session()
    session.register_parquet("t", folder)
    session.register_table("m", TABLE)
    return session


def rows(query):
    return query.to_arrow().to_pydict()


def delivered(session, sql, column="y", **options):
    loader, _ = tq.create_dataloader(
        sql, session=session, batch_size=13, split_rows=20, output_format="dict", **options
    )
    return [value for batch in loader for value in batch[column]]
