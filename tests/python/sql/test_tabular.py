"""Datasets of Hugging Face are tables, with their selection and order; objects that only look like tables are
refused."""

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tensorquery as tq

COLUMNS = {"id": list(range(100)), "text": [f"text {n}" if n % 7 else None for n in range(100)]}


@pytest.fixture
def rows():
    return datasets.Dataset.from_dict(COLUMNS)


def test_a_dataset_is_a_table(session, rows):
    session.register_table("t", rows)
    assert session.table("t").to_arrow().to_pydict() == COLUMNS
    [table] = session.tables
    assert table.rows == 100


def test_with_its_selection_and_order(session, rows):
    chosen = rows.shuffle(seed=3).select(range(10, 40))
    session.register_table("t", chosen)
    assert session.table("t").to_arrow()["id"].to_pylist() == chosen["id"][:]


@pytest.mark.parametrize("kind", ["torch", "numpy", None])
def test_whatever_its_format(session, rows, kind):
    session.register_table("t", rows.with_format(kind, columns=["id"]))
    assert session.table("t").count() == 100


@pytest.mark.slow
def test_from_a_file_that_it_has_cached(session, rows, tmp_path):
    rows.save_to_disk(tmp_path / "saved")
    session.register_table("t", datasets.load_from_disk(tmp_path / "saved"))
    loader, _ = tq.create_dataloader(table="t", session=session, nulls="mask", num_workers=2)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == COLUMNS["id"]


def test_splits_are_registered_one_by_one(session, rows):
    both = datasets.DatasetDict({"train": rows, "test": rows.select(range(5))})
    with pytest.raises(tq.ConfigError, match=r"splits \['test', 'train'\].*data\['test'\]"):
        session.register_table("t", both)
    with pytest.raises(tq.ConfigError, match="empty DatasetDict"):
        session.register_table("t", datasets.DatasetDict())


def test_a_stream_is_no_table(session, rows):
    with pytest.raises(tq.ConfigError, match="IterableDataset, which has no table; .*path="):
        session.register_table("t", rows.to_iterable_dataset())


INNER = pa.struct({"b": pa.int64(), "c": pa.struct({"d": pa.string()})})
NESTED = {
    "struct": pa.struct({"a": INNER}),
    "fixed": pa.list_(INNER, 1),
    "struct of fixed": pa.struct({"a": pa.list_(INNER, 1)}),
    "list": pa.list_(INNER),
    "map": pa.map_(pa.string(), INNER),
}


def nested(kind):
    """Thirty rows, with nulls at each depth."""
    inner = [
        None if n % 5 == 2 else {"b": n, "c": {"d": f"{n}"} if n % 3 else None} for n in range(30)
    ]
    made = {
        "struct": lambda value: {"a": value},
        "struct of fixed": lambda value: {"a": [value]},
        "map": lambda value: [("k", value)],
    }.get(kind, lambda value: [value])
    return pa.array(
        [None if n % 7 == 4 else made(value) for n, value in enumerate(inner)], NESTED[kind]
    )


@pytest.mark.parametrize("kind", NESTED)
def test_a_part_of_a_table_with_structs_in_structs(session, kind):
    column = nested(kind)
    for part in (pa.table({"x": column}).slice(10, 7), pa.record_batch({"x": column}).slice(10, 7)):
        session.register_table("t", part)
        assert session.table("t").to_arrow().to_pylist() == part.to_pylist()
        assert tq.to_tensors(part, output_format="dict") == part.to_pydict()
    # Of a union all inputs have the rows of all of it.
    union = pa.UnionArray.from_sparse(pa.array([0] * 30, pa.int8()), [column], ["u"])
    part = pa.table({"x": union}).slice(10, 7)
    assert tq.to_tensors(part, output_format="arrow").to_pylist() == part.to_pylist()


@pytest.mark.parametrize("kind", NESTED)
def test_a_sample_and_a_function_of_structs_in_structs(session, kind):
    column = nested(kind)
    session.register_table("t", pa.table({"id": range(30), "x": column}))
    sample = session.table("t").sample(5, seed=3).to_pylist()
    assert [row["x"] for row in sample] == [column[row["id"]].as_py() for row in sample]
    session.register_udf("f", lambda ids: column.slice(10, len(ids)), ["int64"], NESTED[kind])
    found = session.sql("SELECT f(id) AS x FROM t WHERE id < 7").to_arrow()
    assert found["x"].to_pylist() == column.slice(10, 7).to_pylist()


def test_numbers_at_an_odd_address(session):
    memory = pa.py_buffer(b"\0" + np.arange(9, dtype=np.int64).tobytes()).slice(1)
    numbers = pa.Array.from_buffers(pa.int64(), 9, [None, memory])
    session.register_table(
        "t", pa.table({"x": numbers, "r": pa.StructArray.from_arrays([numbers], ["y"])})
    )
    assert session.table("t").to_arrow().to_pylist() == [{"x": n, "r": {"y": n}} for n in range(9)]


@pytest.mark.parametrize(
    ("values", "told"),
    [([1, "b"], "Could not convert 'b'"), (["b", 1], "got a 'int'"), ([1, {"x": 1}], "cannot mix")],
    ids=str,
)
def test_a_column_of_several_types_is_named(session, values, told):
    mixed = pd.DataFrame({"fine": [1, 2], "odd": values})
    with pytest.raises(tq.ConfigError) as caught:
        session.register_table("t", mixed)
    message = str(caught.value)
    for part in ("DataFrame", "no one type", told, "column odd", "cast it"):
        assert part in message
    assert "give the column a name" not in message
    assert "('" not in message
    session.register_table("t", mixed.astype({"odd": "string"}))
    assert session.table("t").count() == 2


def test_anything_else_is_refused_by_its_type(session):
    with pytest.raises(tq.ConfigError, match="__arrow_c_stream__.*got dict"):
        session.register_table("t", {"id": [1]})
