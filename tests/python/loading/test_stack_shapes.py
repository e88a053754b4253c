"""A stack holds the values of its columns, whatever its width, its number of rows, and the pieces in which they
arrive."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorquery.loading.tensors import to_tensors

ROWS = [0, 1, 3, 7, 511, 512, 513, 1023, 1024, 8193]
WIDTHS = [1, 2, 3, 4, 15, 16, 17, 63, 64, 65]
DTYPES = ["int8", "uint8", "int16", "int32", "int64", "float32", "float64", "bool"]


def cut(table: pa.Table, borders: list[int]) -> pa.Table:
    """Cut a table into pieces, each a slice with its own offset."""
    edges = sorted({0, table.num_rows, *(min(border, table.num_rows) for border in borders)})
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    return pa.concat_tables(pieces) if pieces else table


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "float64"])
def test_every_width_and_number_of_rows(width: int, dtype: str) -> None:
    for rows in ROWS:
        wanted = np.random.default_rng(rows).integers(-100, 100, (rows, width)).astype(dtype)
        table = pa.table({f"f{column}": wanted[:, column] for column in range(width)})
        got = to_tensors(cut(table, [1, 5, 700]), stack={"x": table.column_names})["x"].numpy()
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@settings(max_examples=40, deadline=None)
@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=40),
    nullable=st.lists(st.booleans(), min_size=40, max_size=40),
    rows=st.sampled_from(ROWS),
    borders=st.lists(st.integers(0, 9000), max_size=4),
    rule=st.sampled_from(["mask", 7, "nan"]),
    seed=st.integers(0, 99),
)
def test_mixed_types_and_nulls_in_pieces(
    dtypes: list[str],
    nullable: list[bool],
    rows: int,
    borders: list[int],
    rule: str | int,
    seed: int,
) -> None:
    dice = np.random.default_rng(seed)
    if rule == "nan":
        dtypes = [dtype if dtype.startswith("float") else "float32" for dtype in dtypes]
    if rule == 7:
        dtypes = [dtype if dtype != "bool" else "int8" for dtype in dtypes]
    values = [dice.integers(0, 2 if "bool" in dtypes else 100, rows).astype(d) for d in dtypes]
    holes = [
        dice.random(rows) < (0.1 if null else 0) for _, null in zip(dtypes, nullable, strict=False)
    ]
    table = pa.table(
        {
            f"f{number}": pa.array(value, mask=hole if hole.any() else None)
            for number, (value, hole) in enumerate(zip(values, holes, strict=True))
        }
    )
    got = to_tensors(cut(table, borders), nulls=rule, stack={"x": table.column_names})
    missing = np.column_stack(holes)
    fill = {"mask": 0, "nan": np.nan, 7: 7}[rule]
    wanted = np.column_stack(values)
    wanted[missing] = fill
    np.testing.assert_array_equal(got["x"].numpy(), wanted)
    if rule == "mask":
        np.testing.assert_array_equal(got["x_mask"].numpy(), ~missing)
