"""Promise: all forms of a filter keep the same rows: SQL, `=` and `in` of a list, `==` and `isin` of pyarrow."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

MOMENT = dt.datetime(2020, 2, 29, 1, 2, 3, 4000)
CASES = {
    "float32": (
        pa.float32(),
        [1.1, 0.1, 0.5, -0.0, 3.0],
        [(1.1, "1.1"), (0.5, "0.5"), (3, "3"), (0.0, "0.0")],
    ),
    "float16": (
        pa.float16(),
        np.array([0.1, 0.5, 2.0], np.float16),
        [(0.1, "0.1"), (0.5, "0.5"), (2, "2")],
    ),
    "float64": (pa.float64(), [1.1, 0.5, -0.0], [(1.1, "1.1"), (0.0, "0.0")]),
    "exact": (
        pa.float32(),
        [1.1, 0.5],
        [
            (np.float32(1.1), "CAST(1.1 AS REAL)"),
            (pa.scalar(1.1, pa.float32()), "CAST(1.1 AS REAL)"),
        ],
    ),
    "int8": (pa.int8(), [1, 2, -128], [(1, "1"), (1.5, "1.5"), (2.0, "2.0"), (300, "300")]),
    "uint64": (
        pa.uint64(),
        [1, 2**64 - 1],
        [(1, "1"), (pa.scalar(2**64 - 1, pa.uint64()), str(2**64 - 1)), (-1, "-1")],
    ),
    "decimal": (
        pa.decimal128(9, 2),
        [Decimal("1.10"), Decimal("2.00")],
        [(Decimal("1.1"), "1.1"), (2, "2")],
    ),
    "text": (pa.string(), ["a", "A", "1"], [("a", "'a'"), ("1", "'1'")]),
    "day": (
        pa.date32(),
        [MOMENT.date(), dt.date(9999, 12, 31)],
        [(MOMENT.date(), "DATE '2020-02-29'"), (dt.date(9999, 12, 31), "DATE '9999-12-31'")],
    ),
    "us": (
        pa.timestamp("us"),
        [MOMENT, dt.datetime(2020, 2, 29)],
        [(MOMENT, f"TIMESTAMP '{MOMENT}'"), (MOMENT.date(), "DATE '2020-02-29'")],
    ),
    "ms": (
        pa.timestamp("ms"),
        [MOMENT],
        [
            (MOMENT, f"TIMESTAMP '{MOMENT}'"),
            (
                MOMENT + dt.timedelta(microseconds=1),
                f"TIMESTAMP '{MOMENT + dt.timedelta(microseconds=1)}'",
            ),
        ],
    ),
    "zone": (
        pa.timestamp("us", "America/Denver"),
        [MOMENT],
        [(MOMENT.replace(tzinfo=dt.UTC), f"TIMESTAMPTZ '{MOMENT}Z'")],
    ),
    "bool": (pa.bool_(), [True, False], [(True, "TRUE")]),
}


def kept(path, filters):
    batches, *_ = tq.create_dataloader(path=path, columns=["id"], filters=filters)
    return [i for batch in batches for i in batch["id"].tolist()]


@pytest.mark.parametrize("name", CASES)
def test_every_form_keeps_the_rows_of_sql(tmp_path, name):
    of, values, constants = CASES[name]
    values = pa.array([*values, None], of)
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"id": range(len(values)), "x": values}), path, row_group_size=1)
    for value, sql in constants:
        same = kept(path, f"x = {sql}")
        assert kept(path, f"x IN ({sql})") == same
        assert kept(path, [("x", "=", value)]) == same, value
        assert kept(path, [("x", "in", [value])]) == same, value
        assert kept(path, pc.field("x") == value) == same, value
        assert (
            kept(
                path,
                pc.field("x").isin(
                    pa.array([value.as_py()], value.type)
                    if isinstance(value, pa.Scalar)
                    else [value]
                ),
            )
            == same
        ), value
        other = kept(path, f"x <> {sql}")
        assert kept(path, [("x", "!=", value)]) == other, value
        assert kept(path, pc.field("x") != value) == other, value
        assert sorted([*same, *other]) == list(range(len(values) - 1))
