"""Promise 7 (docs/promises.md): tensors are what the table of types says, and each stands alone.

For every Arrow type and output format: dtype, shape and values equal pyarrow's own reading of the same
data, over any cut into pieces. Writing into one tensor changes no other and disturbs no other's autograd.
"""

from __future__ import annotations

import datetime
import decimal
import gc
import io
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorquery import _core
from tensorquery.errors import ConfigError, DataError, UnsupportedTypeError
from tensorquery.loading.tensors import BatchBuilder, Encoded, Jagged, to_tensors

FORMATS = ("torch", "numpy")

# Arrow type -> (numpy dtype, values as pyarrow takes them, elements as the tensor has them).
SCALARS: dict[str, tuple[pa.DataType, str, list[Any], list[Any]]] = {
    "Boolean": (pa.bool_(), "bool", [True, False, True], [True, False, True]),
    "Int8": (pa.int8(), "int8", [-128, 0, 127], [-128, 0, 127]),
    "Int16": (pa.int16(), "int16", [-(2**15), 0, 2**15 - 1], [-(2**15), 0, 2**15 - 1]),
    "Int32": (pa.int32(), "int32", [-(2**31), 0, 2**31 - 1], [-(2**31), 0, 2**31 - 1]),
    "Int64": (pa.int64(), "int64", [-(2**63), 0, 2**63 - 1], [-(2**63), 0, 2**63 - 1]),
    "UInt8": (pa.uint8(), "uint8", [0, 1, 255], [0, 1, 255]),
    "UInt16": (pa.uint16(), "uint16", [0, 1, 2**16 - 1], [0, 1, 2**16 - 1]),
    "UInt32": (pa.uint32(), "uint32", [0, 1, 2**32 - 1], [0, 1, 2**32 - 1]),
    "UInt64": (pa.uint64(), "uint64", [0, 1, 2**64 - 1], [0, 1, 2**64 - 1]),
    "Float16": (pa.float16(), "float16", [0.5, -2.0, 65504.0], [0.5, -2.0, 65504.0]),
    "Float32": (pa.float32(), "float32", [0.5, -2.0, 1e38], [0.5, -2.0, float(np.float32(1e38))]),
    "Float64": (pa.float64(), "float64", [0.1, -2.0, 1e300], [0.1, -2.0, 1e300]),
    **{
        name: (
            kind,
            "float64",
            [decimal.Decimal("1.25"), None, decimal.Decimal("-0.1")],
            [1.25, 0, -0.1],
        )
        for name, kind in {
            "Decimal32": pa.decimal32(5, 2),
            "Decimal64": pa.decimal64(15, 2),
            "Decimal128": pa.decimal128(30, 2),
            "Decimal256": pa.decimal256(60, 2),
        }.items()
    },
    "Date32": (pa.date32(), "int64", [0, 1, 20_000], [0, 1, 20_000]),
    "Date64": (pa.date64(), "int64", [0, 86_400_000, 172_800_000], [0, 86_400_000, 172_800_000]),
    "Time32": (pa.time32("ms"), "int64", [0, 1, 86_399_999], [0, 1, 86_399_999]),
    "Time64": (pa.time64("us"), "int64", [0, 1, 86_399_999_999], [0, 1, 86_399_999_999]),
    "Timestamp": (pa.timestamp("us", "UTC"), "int64", [0, -1, 2**50], [0, -1, 2**50]),
    "Duration": (pa.duration("s"), "int64", [0, -1, 10**9], [0, -1, 10**9]),
}
TEXTS = {
    "Utf8": pa.string(),
    "LargeUtf8": pa.large_string(),
    "Utf8View": pa.string_view(),
    "Binary": pa.binary(),
    "LargeBinary": pa.large_binary(),
    "BinaryView": pa.binary_view(),
    "FixedSizeBinary": pa.binary(3),
}
LISTS = {
    "List": pa.list_(pa.int32()),
    "LargeList": pa.large_list(pa.int32()),
    "ListView": pa.list_view(pa.int32()),
    "LargeListView": pa.large_list_view(pa.int32()),
}


def unsupported() -> dict[str, pa.Array]:
    """Arrays of the types that have no tensor form."""
    return {
        "Null": pa.nulls(2),
        "Interval": pa.array([(1, 2, 3), (4, 5, 6)], pa.month_day_nano_interval()),
        "Map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
        "Union": pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
        "RunEndEncoded": pa.RunEndEncodedArray.from_arrays(
            pa.array([2], pa.int32()), pa.array([1.5])
        ),
        "List of Utf8": pa.array([["a"], []]),
    }


def table(array: pa.Array | pa.ChunkedArray, *, nullable: bool = True) -> pa.Table:
    """A table of the one column "c"."""
    return pa.table([array], schema=pa.schema([pa.field("c", array.type, nullable=nullable)]))


def flat(value: Any) -> list[Any]:
    """The elements of a tensor or an array, as Python objects."""
    assert isinstance(value, torch.Tensor | np.ndarray)
    return value.tolist()  # type: ignore[no-any-return]


def dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("name", SCALARS)
def test_scalars(name: str, output_format: str) -> None:
    arrow, dtype, values, expected = SCALARS[name]
    array = pa.array(values, arrow)
    whole = to_tensors(table(array), output_format=output_format, nulls="mask")
    assert dtype_name(whole["c"]) == dtype
    assert tuple(whole["c"].shape) == (3,)
    assert flat(whole["c"]) == expected
    assert flat(whole["c_mask"]) == [value is not None for value in values]
    chunked = pa.chunked_array([array[:1], array[:0], array[1:]])
    assert flat(to_tensors(table(chunked), output_format=output_format, nulls=0)["c"]) == expected
    empty = to_tensors(table(array[:0]), output_format=output_format)
    assert (dtype_name(empty["c"]), tuple(empty["c"].shape)) == (dtype, (0,))


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("name", TEXTS)
def test_strings_and_bytes(name: str, output_format: str) -> None:
    texts = ["abc", "äb", "abc"] if "Utf8" in name else [b"abc", b"\x00\xff\x01", b"abc"]
    array = pa.chunked_array(
        [pa.array([*texts[:2], None], TEXTS[name]), pa.array(texts[2:], TEXTS[name])]
    )
    empty = texts[0][:0]
    got = to_tensors(table(array), output_format=output_format, nulls="mask")
    assert got["c"] == [*texts[:2], empty, texts[2]]
    assert flat(got["c_mask"]) == [True, True, False, True]
    assert (
        to_tensors(table(array), output_format=output_format, nulls={"c": texts[1]})["c"][2]
        == texts[1]
    )
    codes = to_tensors(
        table(array),
        output_format=output_format,
        nulls={"c": texts[0]},
        categories={"c": [texts[1], texts[0]]},
    )["c"]
    assert (dtype_name(codes), flat(codes)) == ("int64", [1, 0, 1, 1])
    with pytest.raises(DataError, match=r'"c".*1 null'):
        to_tensors(table(array), output_format=output_format)
    with pytest.raises(DataError, match=r'"c".*not among its 1 categories'):
        to_tensors(
            table(array), output_format=output_format, nulls="mask", categories={"c": [texts[0]]}
        )


@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str) -> None:
    values = [[1, 2], [], None, [3]]
    array = pa.chunked_array([pa.array(values, LISTS[name])[1:], pa.array(values, LISTS[name])[:3]])
    rows = [[], [], [3], [1, 2], [], []]
    valid = [True, False, True, True, True, False]
    jagged = to_tensors(table(array), output_format="numpy", nulls="mask")
    assert isinstance(jagged["c"], Jagged)
    assert flat(jagged["c"].offsets) == [0, 0, 0, 1, 3, 3, 3]
    assert (dtype_name(jagged["c"].values), flat(jagged["c"].values)) == ("int32", [3, 1, 2])
    assert flat(jagged["c_mask"]) == valid
    nested = to_tensors(table(array), nulls="mask")["c"]
    assert nested.is_nested
    assert nested.layout == torch.jagged
    assert [row.tolist() for row in nested.unbind()] == rows
    for output_format in FORMATS:
        padded = to_tensors(table(array), output_format=output_format, nulls="mask", pad={"c": -1})[
            "c"
        ]
        assert flat(padded) == [[*row, -1, -1][:2] for row in rows]
        wide = to_tensors(
            table(array), output_format=output_format, nulls="mask", pad={"c": (0, 3)}
        )["c"]
        assert flat(wide) == [[*row, 0, 0, 0][:3] for row in rows]
    with pytest.raises(
        DataError, match=r'"c" has a list of 2 elements, longer than the max_length 1'
    ):
        to_tensors(table(array), nulls="mask", pad={"c": (0, 1)})
    with pytest.raises(DataError, match=r'"c".*2 nulls'):
        to_tensors(table(array), nulls=0)
    empty = to_tensors(table(array[:0]))["c"]
    assert (empty.size(0), list(empty.unbind())) == (0, [])
    assert to_tensors(table(array[:0]), pad={"c": (0, 3)})["c"].shape == (0, 3)
    assert to_tensors(table(array[:0]), pad={"c": 0})["c"].shape == (0, 0)


def test_lists_of_vectors_and_padding_with_infinity() -> None:
    vectors = pa.array(
        [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]], pa.list_(pa.list_(pa.float32(), 2))
    )
    jagged = to_tensors(table(vectors), output_format="numpy")["c"]
    assert jagged.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert jagged.offsets.tolist() == [0, 1, 1, 3]
    assert [row.tolist() for row in to_tensors(table(vectors))["c"].unbind()] == vectors.to_pylist()
    padded = to_tensors(table(vectors), pad={"c": -np.inf})["c"]
    assert padded.shape == (3, 2, 2)
    assert padded[0].tolist() == [[1, 2], [-np.inf, -np.inf]]


@pytest.mark.parametrize("output_format", FORMATS)
def test_fixed_size_lists(output_format: str) -> None:
    pairs = pa.array([[1.5, None], None, [3.5, 4.5]], pa.list_(pa.float64(), 2))
    got = to_tensors(table(pairs), output_format=output_format, nulls="nan")["c"]
    assert tuple(got.shape) == (3, 2)
    np.testing.assert_array_equal(np.asarray(got), [[1.5, np.nan], [np.nan, np.nan], [3.5, 4.5]])
    got = to_tensors(table(pairs[1:]), output_format=output_format, nulls="mask")
    assert (flat(got["c"]), flat(got["c_mask"])) == ([[0, 0], [3.5, 4.5]], [False, True])
    with pytest.raises(DataError, match=r"1 null elements inside its lists"):
        to_tensors(table(pairs), output_format=output_format, nulls="mask")
    nested = pa.array(np.arange(24).reshape(2, 3, 4).tolist(), pa.list_(pa.list_(pa.int64(), 4), 3))
    got = to_tensors(table(nested), output_format=output_format)["c"]
    assert flat(got) == np.arange(24).reshape(2, 3, 4).tolist()
    assert tuple(to_tensors(table(nested[:0]), output_format=output_format)["c"].shape) == (0, 3, 4)
    none = pa.array([[], []], pa.list_(pa.int64(), 0))
    assert tuple(to_tensors(table(none), output_format=output_format)["c"].shape) == (2, 0)


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("permutation", [None, [0, 1, 2], [0, 2, 1], [2, 0, 1]])
def test_fixed_shape_tensors_present_their_axes_in_order(
    output_format: str, permutation: list[int] | None
) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=permutation)
    stored = np.arange(48, dtype=np.int32).reshape(2, 2, 3, 4)
    array = pa.ExtensionArray.from_storage(
        kind, pa.array(stored.reshape(2, 24).tolist(), kind.storage_type)
    )
    got = to_tensors(table(array), output_format=output_format)["c"]
    # Arrow's format says: axis i of the logical view is axis permutation[i] of the stored tensor. pyarrow 26
    # follows it where the permutation is its own inverse; for [2, 0, 1] its strides repeat elements.
    expected = stored.transpose(0, *(axis + 1 for axis in permutation or [0, 1, 2]))
    assert tuple(got.shape) == expected.shape == array.to_numpy_ndarray().shape
    np.testing.assert_array_equal(np.asarray(got), expected)
    if permutation != [2, 0, 1]:
        np.testing.assert_array_equal(np.asarray(got), array.to_numpy_ndarray())


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize(
    "values",
    [["b", "a", "b"], [b"b", b"a", b"b"], [3, 1, 3], [0.5, 0.25, 0.5], [True, False, True]],
)
def test_dictionaries(values: list[Any], output_format: str) -> None:
    first = pa.array(values).dictionary_encode()
    # Equal values under another dictionary, with other keys, as far as one chunked array allows.
    second = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0], pa.int32()), pa.array([values[0], values[1]])
    )
    array = pa.chunked_array([first[1:], second])
    got = to_tensors(table(array), output_format=output_format, nulls={"c": values[0]})["c"]
    assert isinstance(got, Encoded)
    assert got.categories == [values[1], values[0]]
    assert [type(category) for category in got.categories] == [type(value) for value in values[:2]]
    assert (dtype_name(got.codes), flat(got.codes)) == ("int64", [0, 1, 0, 1, 1])
    known = {"c": [values[0], values[1]]}
    codes = to_tensors(table(array), output_format=output_format, nulls="mask", categories=known)
    assert flat(codes["c"]) == [1, 0, 1, 0, 0]
    assert flat(codes["c_mask"]) == [True, True, True, False, True]


@pytest.mark.parametrize("output_format", FORMATS)
def test_structs_are_dicts(output_format: str) -> None:
    array = pa.array([{"x": 1, "in": {"y": 2.5, "t": "a"}}, {"x": 3, "in": None}, None])
    got = to_tensors(table(array), output_format=output_format, nulls="mask")
    assert flat(got["c_mask"]) == [True, True, False]
    assert flat(got["c"]["x"]) == [1, 3, 0]
    assert flat(got["c"]["in"]["y"]) == [2.5, 0, 0]
    assert flat(got["c"]["in_mask"]) == [True, False, False]
    assert got["c"]["in"]["t"] == ["a", "", ""]
    with pytest.raises(DataError, match=r'"c'):
        to_tensors(table(array), output_format=output_format)


@pytest.mark.parametrize("name", unsupported())
def test_unsupported_types_name_column_type_and_fix(name: str) -> None:
    for output_format in FORMATS:
        with pytest.raises(
            UnsupportedTypeError,
            match=r'column "c" has type .* cast it in SQL.*output_format="arrow"',
        ):
            BatchBuilder(table(unsupported()[name]).schema, output_format=output_format)


def test_arrow_and_dict_are_pyarrows_own() -> None:
    types = {**{name: pa.array(row[2], row[0]) for name, row in SCALARS.items()}}
    types |= {name: pa.array(["abc", None, "def"], kind) for name, kind in TEXTS.items()}
    types |= {name: pa.array([[1], None, []], kind) for name, kind in LISTS.items()}
    types["Struct"] = pa.array([{"x": 1}, None, {"x": None}])
    types["FixedSizeList"] = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2))
    types["Dictionary"] = pa.array(["a", None, "b"]).dictionary_encode()
    types["Null"] = pa.nulls(3)
    types["Map"] = pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32()))
    whole = pa.table(types)
    chunks = pa.concat_tables([whole[:1], whole[1:]])
    got = to_tensors(chunks, output_format="arrow")
    assert isinstance(got, pa.RecordBatch)
    assert got.schema == whole.schema
    assert got.to_pylist() == whole.to_pylist()
    assert to_tensors(chunks, output_format="dict") == whole.to_pydict()
    assert to_tensors(whole[:0], output_format="arrow").num_rows == 0


def test_every_row_of_the_table_is_tested(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "types.md").read_text(encoding="utf-8")
    body = text.split("|---|---|---|---|---|\n", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    assert len(rows) >= 41
    elsewhere = {"FixedSizeList", "arrow.fixed_shape_tensor", "Dictionary", "Struct"}
    for name, output, shape, *_ in rows:
        if name in SCALARS:
            assert (output, shape) == (f"`{SCALARS[name][1]}`", "(N,)"), name
        elif name in TEXTS:
            assert output == ("list of str" if "Utf8" in name else "list of bytes"), name
        elif name in LISTS:
            assert shape == "jagged", name
        elif name in unsupported():
            assert output == "error", name
        else:
            assert name in elsewhere, name
    assert {row[0] for row in rows} >= {*SCALARS, *TEXTS, *LISTS, *elsewhere, *unsupported()} - {
        "List of Utf8"
    }


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.one_of(st.none(), st.integers(-100, 100)), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    rule=st.sampled_from(["mask", 7]),
    dtype=st.sampled_from(["int8", "int64", "float16", "float32", "float64", "duration[us]"]),
)
def test_any_chunks_give_pyarrows_values(
    values: list[int | None], cuts: list[int], rule: Any, dtype: str
) -> None:
    arrow = pa.duration("us") if dtype.startswith("duration") else getattr(pa, dtype)()
    array = pa.array(values, arrow)
    edges = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    chunks = [array[a:b] for a, b in itertools.pairwise(edges)]
    got = to_tensors(table(pa.chunked_array(chunks, arrow)), nulls=rule)
    fill = 0 if rule == "mask" else rule
    assert got["c"].tolist() == [fill if value is None else value for value in values]
    if rule == "mask":
        assert got["c_mask"].tolist() == [value is not None for value in values]


@settings(max_examples=50, deadline=None)
@given(
    dtypes=st.lists(
        st.sampled_from(["int8", "uint8", "int16", "int32", "float32", "float64"]),
        min_size=1,
        max_size=20,
    ),
    rows=st.integers(0, 600),
    seed=st.integers(0, 99),
)
def test_a_stack_is_numpys_column_stack(dtypes: list[str], rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = {
        f"f{i}": random.integers(0, 100, rows).astype(dtype) for i, dtype in enumerate(dtypes)
    }
    got = to_tensors(pa.table(columns | {"y": np.arange(rows)}), stack={"x": list(columns)})
    assert list(got) == ["y", "x"]
    expected = np.column_stack(list(columns.values()))
    assert got["x"].shape == (rows, len(dtypes))
    assert got["x"].is_contiguous()
    assert got["x"].numpy().dtype == np.result_type(*map(np.dtype, dtypes))
    np.testing.assert_array_equal(got["x"].numpy(), expected)


def test_writing_into_one_tensor_changes_no_other() -> None:
    fields = [("a", pa.float32()), ("b", pa.float32()), ("c", pa.list_(pa.float32(), 2))]
    values = {"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [[1.0, 2.0], [3.0, 4.0]]}
    schema, pieces = _core.read_arrow(pa.table(values, pa.schema(fields)))
    builder = BatchBuilder(schema)
    first, second = (builder.build(builder.gather(pieces)) for _ in range(2))
    first["a"].fill_(9)
    first["c"].mul_(0)
    assert first["b"].tolist() == [3, 4]
    assert {name: value.tolist() for name, value in second.items()} == {
        "a": [1, 2],
        "b": [3, 4],
        "c": [[1, 2], [3, 4]],
    }
    # Arrow's own memory is shared with whoever made it: it is never handed out.
    assert pa.record_batch(pieces[0]).to_pydict()["a"] == [1, 2]


def test_an_in_place_operation_disturbs_no_siblings_autograd() -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 6.0]})
    batch, other = (to_tensors(table, stack={"x": ["b", "c"]}) for _ in range(2))
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    # `a` is saved for the backward pass, which fails if its version has changed: tensors that were
    # views of one block would share the version with every other column.
    loss = (batch["a"] * weight).sum()
    batch["x"].add_(1)
    other["a"].add_(1)
    assert batch["a"]._version == 0
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 2]


@pytest.mark.slow
def test_tensors_own_their_part_of_the_block() -> None:
    batch = to_tensors(
        pa.table({"a": np.arange(1000), "b": np.arange(1000, dtype="int8"), "d": [1.5] * 1000})
    )
    pointers = [tensor.data_ptr() for tensor in batch.values()]
    assert all(pointer % 64 == 0 for pointer in pointers)
    assert max(pointers) - min(pointers) < 3 * 8192
    assert batch["b"].untyped_storage().nbytes() == 1000
    buffer = io.BytesIO()
    torch.save(batch["b"], buffer)
    assert len(buffer.getvalue()) < 4000
    kept = batch.pop("b")
    del batch
    gc.collect()
    assert kept.tolist() == np.arange(1000, dtype="int8").tolist()
    array = to_tensors(pa.table({"a": [1, 2]}), output_format="numpy")["a"]
    assert array.flags.writeable


def test_masks_follow_the_schema_not_the_data() -> None:
    schema = pa.schema([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.int8())])
    got = to_tensors(pa.table({"a": [1], "b": [2]}, schema), nulls="mask")
    assert list(got) == ["a", "b", "b_mask"]
    assert list(to_tensors(pa.table({"a": [1], "b": [2]}, schema), nulls={"a": "mask"})) == [
        "a",
        "b",
    ]


def test_what_a_dict_does_not_hold_is_named() -> None:
    rows = table(pa.array([0, 2**62], pa.duration("s")))
    with pytest.raises(
        DataError, match=r"'c' \(duration\[s\]\) has a value.*output_format=\"arrow\""
    ):
        to_tensors(rows, output_format="dict")
    assert to_tensors(rows)["c"].tolist() == [0, 2**62]
    twins = pa.table([[1], [2]], names=["c", "c"])
    with pytest.raises(ConfigError, match="two columns are named 'c'"):
        to_tensors(twins, output_format="dict")


def test_more_values_than_the_keys_of_a_dictionary_count_say_what_to_do() -> None:
    codes = pa.array(range(100), pa.int8())
    chunks = [
        pa.DictionaryArray.from_arrays(codes, [f"{part}-{code}" for code in range(100)])
        for part in range(2)
    ]
    rows = table(pa.chunked_array(chunks))
    assert to_tensors(rows)["c"].codes.tolist() == list(range(200))
    with pytest.raises(DataError, match=r"more values than the keys .* CAST\(c AS VARCHAR\)"):
        to_tensors(rows, output_format="arrow")


def test_decimals_beyond_64_bits_name_the_column() -> None:
    values = table(pa.array([decimal.Decimal("1e20")], pa.decimal128(25, 2)))
    assert to_tensors(values)["c"].tolist() == [1e20]
    with pytest.raises(DataError, match=r'"c".*does not fit int64'):
        to_tensors(values, decimal="int64")
    unscaled = table(pa.array([decimal.Decimal("-1.25")], pa.decimal128(25, 2)))
    assert to_tensors(unscaled, decimal="int64")["c"].tolist() == [-125]


def test_times_are_in_the_columns_own_unit() -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        array = pa.array([moment], pa.timestamp(unit, "Europe/Berlin"))
        assert to_tensors(table(array))["c"].tolist() == [int(moment.timestamp()) * factor]
    assert to_tensors(table(pa.array([datetime.date(1970, 1, 3)])))["c"].tolist() == [2]


def test_what_an_old_torch_lacks_is_said(monkeypatch):
    batch = pa.record_batch({"u": pa.array([1, 2], pa.uint32()), "l": [[1], [2, 3]]})
    monkeypatch.delattr(torch, "uint32")
    with pytest.raises(
        UnsupportedTypeError, match=r"column 'u' needs torch.uint32, .* 2.3 or newer"
    ):
        to_tensors(batch.select(["u"]))
    monkeypatch.delattr(torch.nested, "nested_tensor_from_jagged")
    with pytest.raises(
        UnsupportedTypeError, match=r"column 'l' needs .*pad={'l': 0}.* 2.5 or newer"
    ):
        to_tensors(batch.select(["l"]))
    assert to_tensors(batch.select(["l"]), pad={"l": 0})["l"].tolist() == [[1, 0], [2, 3]]
