"""A stack whose columns are decoded straight into a matrix equals a stack made from decoded columns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import tensorquery as tq

FILES = (10_000, 15_000, 7300, 40_960, 3)
ROWS = sum(FILES)
WIDTH = 37
NAMES = [f"f{number}" for number in range(WIDTH)]


def values(dtype: str) -> np.ndarray:
    """Different in each cell, as far as the type can tell."""
    cells = np.arange(ROWS * WIDTH, dtype=np.int64).reshape(ROWS, WIDTH)
    return (cells % {"int8": 127, "float16": 2048}.get(dtype, ROWS * WIDTH)).astype(dtype)


def write(folder: Path, cells: np.ndarray, holes: np.ndarray | None = None, **options: Any) -> Path:
    """Files whose rows and row groups no batch size divides, with a column in front, in the middle and behind."""
    folder.mkdir(exist_ok=True)
    first = 0
    for number, rows in enumerate(FILES):
        here = slice(first, first + rows)
        columns = {"id": pa.array(np.arange(first, first + rows))}
        for place, name in enumerate(NAMES):
            mask = None if holes is None else holes[here, place]
            columns[name] = pa.array(cells[here, place], mask=mask)
            if place == 20:
                columns["text"] = pa.array([str(row) for row in range(first, first + rows)])
        columns["label"] = pa.array(np.arange(first, first + rows, dtype=np.int32) % 7)
        options.setdefault("row_group_size", 7000)
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", **options)
        first += rows
    return folder


def read(folder: Path, batch_size: int, **options: Any) -> list[dict[str, Any]]:
    stack = options.pop("stack", {"x": NAMES})
    loader, _ = tq.create_dataloader(path=folder, batch_size=batch_size, stack=stack, **options)
    return list(loader)


def matrix(batches: list[dict[str, Any]], name: str = "x") -> np.ndarray:
    return np.concatenate([batch[name].numpy() for batch in batches])


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("matrices") / "float32", values("float32"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8", "float16"])
@pytest.mark.parametrize("batch_size", [1000, 1024, 8192])
def test_every_type(tmp_path: Path, dtype: str, batch_size: int) -> None:
    folder = write(tmp_path, values(dtype))
    batches = read(folder, batch_size)
    got = matrix(batches)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, values(dtype))
    np.testing.assert_array_equal(matrix(batches, "id"), np.arange(ROWS))
    np.testing.assert_array_equal(matrix(batches, "label"), np.arange(ROWS) % 7)
    texts = [text for batch in batches for text in batch["text"]]
    assert texts == [str(row) for row in range(ROWS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"use_dictionary": False, "compression": "none"},
        {"use_dictionary": False, "compression": "zstd", "data_page_version": "2.0"},
        {"use_dictionary": False, "data_page_size": 4000},
        {"use_dictionary": False, "data_page_size": 4000, "write_batch_size": 100},
        # Which only the `parquet` crate reads: all columns, and one of a line of sixteen.
        {"use_dictionary": False, "compression": "gzip"},
        {"use_dictionary": False, "column_encoding": {"f3": "BYTE_STREAM_SPLIT"}},
        {"row_group_size": 100_000},
        {"row_group_size": 100_000, "use_dictionary": False, "data_page_size": 50_000},
        {"row_group_size": 900},
        {"row_group_size": 1},
    ],
    ids=lambda layout: "-".join(f"{name}={value}" for name, value in layout.items()),
)
def test_every_layout_of_a_file(
    tmp_path: Path, layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout.get("row_group_size") == 1:
        monkeypatch.setattr(f"{__name__}.FILES", (13, 2, 30))
        monkeypatch.setattr(f"{__name__}.ROWS", 45)
    folder = write(tmp_path, values("float32"), **layout)
    np.testing.assert_array_equal(matrix(read(folder, 1000)), values("float32"))


def test_any_order_and_several_stacks(numbers: Path) -> None:
    order = np.random.default_rng(3).permutation(WIDTH)
    some, others = order[:20], order[20:]
    stack = {
        "some": [NAMES[place] for place in some],
        "others": [NAMES[place] for place in others],
    }
    batches = read(numbers, 3000, stack=stack)
    np.testing.assert_array_equal(matrix(batches, "some"), values("float32")[:, some])
    np.testing.assert_array_equal(matrix(batches, "others"), values("float32")[:, others])


def test_a_column_of_two_stacks_and_stacks_of_several_types(numbers: Path) -> None:
    stack = {"a": ["f1", "f2", "f3"], "b": ["f3", "f2"], "c": ["f7", "label"], "d": ["f9", "f8"]}
    batches = read(numbers, 3000, stack=stack)
    cells = values("float32")
    np.testing.assert_array_equal(matrix(batches, "a"), cells[:, [1, 2, 3]])
    np.testing.assert_array_equal(matrix(batches, "b"), cells[:, [3, 2]])
    mixed = np.column_stack([cells[:, 7], np.arange(ROWS) % 7])
    np.testing.assert_array_equal(matrix(batches, "c"), mixed)
    np.testing.assert_array_equal(matrix(batches, "d"), cells[:, [9, 8]])
    # Columns outside the stacks are delivered as ever.
    np.testing.assert_array_equal(matrix(batches, "f10"), cells[:, 10])


def test_a_stack_of_all_columns(tmp_path: Path) -> None:
    cells = values("float32")[:5000]
    columns = {name: cells[:, place] for place, name in enumerate(NAMES)}
    pq.write_table(pa.table(columns), tmp_path / "only.parquet", row_group_size=700)
    batches = read(tmp_path, 512)
    assert set(batches[0]) == {"x"}
    np.testing.assert_array_equal(matrix(batches), cells)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mask", "nan", 7])
def test_nulls(tmp_path: Path, rule: str | int) -> None:
    holes = np.random.default_rng(5).random((ROWS, WIDTH)) < 0.05
    holes[:, ::3] = False
    holes[:9000] = False
    folder = write(tmp_path, values("float32"), holes)
    wanted = values("float32")
    wanted[holes] = {"mask": 0, "nan": np.nan, 7: 7}[rule]
    batches = read(folder, 1000, nulls=rule)
    np.testing.assert_array_equal(matrix(batches), wanted)
    if rule == "mask":
        np.testing.assert_array_equal(matrix(batches, "x_mask"), ~holes)


def test_nulls_of_each_column_by_a_rule_of_its_own(tmp_path: Path) -> None:
    holes = np.zeros((ROWS, WIDTH), bool)
    holes[::5, 4] = holes[::7, 5] = holes[::11, 6] = True
    folder = write(tmp_path, values("float32"), holes)
    wanted = values("float32")
    wanted[holes[:, 4], 4], wanted[holes[:, 5], 5], wanted[holes[:, 6], 6] = np.nan, -1, 0
    rules = {"f4": "nan", "f5": -1, "f6": "mask"}
    batches = read(folder, 4096, nulls=rules)
    np.testing.assert_array_equal(matrix(batches), wanted)
    np.testing.assert_array_equal(matrix(batches, "x_mask"), ~holes)


def test_a_null_that_no_rule_covers_is_told_with_its_column(tmp_path: Path) -> None:
    holes = np.zeros((ROWS, WIDTH), bool)
    holes[[12_000, 12_001, 30_000], 17] = True
    folder = write(tmp_path, values("float32"), holes)
    loader, _ = tq.create_dataloader(path=folder, batch_size=1000, stack={"x": NAMES})
    batches = iter(loader)
    np.testing.assert_array_equal(
        matrix(list(itertools.islice(batches, 12))), values("float32")[:12_000]
    )
    told = r"column \"f17\" \(Float32\) has 2 nulls in a batch of 1000 rows: choose nulls="
    with pytest.raises(tq.DataError, match=told):
        next(batches)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1000, 8192])
def test_a_rank_that_goes_on_in_the_middle(numbers: Path, batch_size: int) -> None:
    options = {"path": numbers, "batch_size": batch_size, "stack": {"x": NAMES}}
    found = []
    for rank in range(3):
        loader, _ = tq.create_dataloader(**options, rank=rank, world_size=3)
        taken = list(itertools.islice(loader, 2))
        again, _ = tq.create_dataloader(**options, rank=rank, world_size=3)
        again.load_state_dict(loader.state_dict())
        for batch in [*taken, *again]:
            ids = batch["id"].numpy()
            np.testing.assert_array_equal(batch["x"].numpy(), values("float32")[ids])
            found += ids.tolist()
    assert sorted(found) == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"num_workers": 2},
        {"filters": "label = 3"},
        {"filters": "f5 > 1000"},
        {"rank": 0, "world_size": 2, "remainder": "pad"},
    ],
    ids=str,
)
def test_other_ways_to_read(numbers: Path, options: dict[str, Any]) -> None:
    batches = read(numbers, 500, **options)
    ids = matrix(batches, "id")
    np.testing.assert_array_equal(matrix(batches), values("float32")[ids])


def test_a_query_that_computes_its_columns(numbers: Path) -> None:
    columns = ", ".join([*NAMES[:5], "f5 + 1 AS more"])
    loader, _ = tq.create_dataloader(
        f"SELECT id, {columns} FROM '{numbers}'",
        batch_size=1000,
        stack={"x": [*NAMES[:5], "more"]},
    )
    cells = values("float32")[:, :6]
    cells[:, 5] += 1
    batches = list(loader)
    np.testing.assert_array_equal(matrix(batches), cells[matrix(batches, "id")])


def test_a_stack_that_is_computed_beside_one_that_is_decoded(numbers: Path) -> None:
    loader, _ = tq.create_dataloader(
        f"SELECT id, f1, f2, f3, f1 * 2 AS twice FROM '{numbers}'",
        batch_size=1000,
        stack={"twice and more": ["twice", "f1"], "x": ["f3", "f2"]},
    )
    cells, batches = values("float32"), list(loader)
    np.testing.assert_array_equal(matrix(batches), cells[:, [3, 2]])
    twice = np.column_stack([cells[:, 1] * 2, cells[:, 1]])
    np.testing.assert_array_equal(matrix(batches, "twice and more"), twice)


@pytest.mark.slow
def test_thousands_of_columns(tmp_path: Path) -> None:
    """8,192 rows of it would take more than 64 MiB."""
    cells = np.arange(3000 * 1000, dtype=np.float32).reshape(1000, 3000)
    names = [f"f{number}" for number in range(3000)]
    table = pa.table(dict(zip(names, cells.T, strict=True)))
    pq.write_table(table, tmp_path / "wide.parquet", use_dictionary=False)
    loader, _ = tq.create_dataloader(path=tmp_path, batch_size=300, stack={"x": names})
    np.testing.assert_array_equal(matrix(list(loader)), cells)


def test_files_that_store_a_column_otherwise_or_not_at_all(tmp_path: Path) -> None:
    """Columns of float64 in the table: int32 in one file, missing in another, and one from the folder's name."""
    wanted = []
    for number, rows in enumerate((3000, 2000, 2500)):
        cells = np.arange(rows * 3, dtype=np.float64).reshape(rows, 3) + 10_000 * number
        columns = {name: cells[:, place] for place, name in enumerate("abc")}
        if number == 1:
            columns["b"] = columns["b"].astype(np.int32)
        if number == 2:
            del columns["c"]
            cells[:, 2] = np.nan
        folder = tmp_path / f"part={number}"
        folder.mkdir()
        pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=700)
        wanted.append(np.column_stack([cells, np.full(rows, number)]))
    loader, _ = tq.create_dataloader(
        f"SELECT a, b, c, CAST(part AS DOUBLE) AS part FROM '{tmp_path}'",
        batch_size=512,
        nulls="nan",
        stack={"x": ["a", "b", "c", "part"]},
    )
    np.testing.assert_array_equal(matrix(list(loader)), np.concatenate(wanted))
    loader, _ = tq.create_dataloader(
        path=tmp_path, batch_size=512, nulls="nan", stack={"x": ["a", "b", "c"], "y": ["part"]}
    )
    batches = list(loader)
    np.testing.assert_array_equal(matrix(batches), np.concatenate(wanted)[:, :3])
    np.testing.assert_array_equal(matrix(batches, "y"), np.concatenate(wanted)[:, 3:])


def test_matrices_are_handed_out_in_the_memory_that_they_were_written_to(numbers: Path) -> None:
    """Consecutive batches of a row group are adjacent in memory, and may be written to."""
    batches = read(numbers, 1000, columns=["id", *NAMES])
    ends = [batch["x"].data_ptr() + batch["x"].nbytes for batch in batches]
    starts = [batch["x"].data_ptr() for batch in batches]
    follow = sum(end == start for end, start in zip(ends, starts[1:], strict=False))
    assert follow > len(batches) / 2
    first, second = batches[:2]
    assert ends[0] == starts[1]
    first["x"].fill_(-1)
    assert torch.equal(second["x"], torch.from_numpy(values("float32")[1000:2000]))


def test_a_small_batch_does_not_hold_all_rows_that_were_decoded_with_it(numbers: Path) -> None:
    """7,000 rows are decoded together: batches of 128 rows are lent, batches of 100 are copied."""
    for batch_size, is_lent in ((100, False), (128, True)):
        loader, _ = tq.create_dataloader(
            path=numbers, columns=["id", *NAMES], batch_size=batch_size, stack={"x": NAMES}
        )
        batches = list(itertools.islice(loader, 20))
        np.testing.assert_array_equal(matrix(batches), values("float32")[: 20 * batch_size])
        for before, batch in itertools.pairwise(batches):
            follows = before["x"].data_ptr() + before["x"].nbytes == batch["x"].data_ptr()
            assert follows is is_lent


@pytest.mark.slow
def test_memory_of_a_matrix_serves_another_only_when_all_of_its_batches_are_gone(
    numbers: Path,
) -> None:
    """Each second batch is kept, and what is read later is read into other memory."""
    kept = []
    for _ in range(3):
        loader, _ = tq.create_dataloader(path=numbers, batch_size=500, stack={"x": NAMES})
        kept += [batch for number, batch in enumerate(loader) if number % 2]
    for batch in kept:
        wanted = values("float32")[batch["id"].numpy()]
        np.testing.assert_array_equal(batch["x"].numpy(), wanted)
