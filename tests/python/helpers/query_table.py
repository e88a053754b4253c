"""The small table t of the tests of queries: numbers, texts, dates, times and truths, with NULL in each."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq

import tensorquery as tq

UTC = dt.UTC
TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, None, 5], pa.int64()),
        "f": pa.array([0.5, -1.0, None, 2.5, 1e300]),
        "s": ["it's", 'say "hi"', None, "100%", "x -- y"],
        "day": pa.array([dt.date(2026, 1, day) for day in (1, 2, 3, 4)] + [None]),
        "at": pa.array(
            [dt.datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(5)],
            pa.timestamp("us", "UTC"),
        ),
        "ok": [True, False, None, True, False],
        "Cap": [1, 2, 3, 4, 5],
    }
)


def session_with_table(folder):
    """A session with `TABLE` as t, from a Parquet file of three row groups in `folder`."""
    session = tq.Session()
    pq.write_table(TABLE, folder / "t.parquet", row_group_size=2)
    session.register_parquet("t", folder / "t.parquet")
    return session
