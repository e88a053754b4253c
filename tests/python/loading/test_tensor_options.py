"""Options of tensors fail at construction, naming the value, what was allowed and the fix."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tensorquery as tq
from tensorquery.errors import ConfigError, DataError
from tensorquery.loading.tensors import BatchBuilder, tensor_options, to_tensors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nulls": "eror"}, "nulls='eror'.*did you mean 'error'"),
        ({"nulls": None}, "nulls: allowed are"),
        ({"nulls": {"aa": "mask"}}, 'unknown column "aa"; did you mean "a"'),
        ({"nulls": {"a": "nan"}}, '"a".*Int64'),
        ({"nulls": {"a": 2**70}}, "does not fit 64 bits"),
        ({"nulls": {"t": 0}}, '"t".*Utf8'),
        ({"nulls": "mask", "stack": {"a_mask": ["b"]}}, '"a_mask".*mask of column "a".*stack'),
        ({"stack": ["a"]}, "stack must be a dict"),
        ({"stack": {"x": "a"}}, r"stack\['x'\] must be a list"),
        ({"stack": {"x": ["a", "t"]}}, '"t".*Utf8'),
        ({"stack": {"x": ["a", "z"]}}, 'unknown column "z"'),
        ({"stack": {"x": ["r.f"]}}, '"r.f", which is a field of a struct; select it as a column'),
        ({"stack": {"a": ["b"]}}, 'two outputs would be named "a"'),
        ({"pad": {"a": 0}}, '"a" is Int64, not a list'),
        ({"pad": {"l": (0, 0)}}, "max_length"),
        ({"pad": {"l": (0, 1, 2)}}, "value, max_length"),
        ({"pad": {"l": 0.5}}, "0.5 does not fit"),
        ({"categories": {"a": ["x"]}}, '"a" is Int64'),
        ({"categories": {"t": "xy"}}, "must be a list"),
        ({"categories": {"t": {"x", "y"}}}, r"categories\['t'\] must be a list, not a set.*sorted"),
        ({"stack": {"x": {"a", "b"}}}, r"stack\['x'\] must be a list, not a set.*sorted"),
        ({"nulls": {"t": "\udcff"}}, "is not UTF-8 text"),
        ({"decimal": "float32"}, "decimal='float32'"),
        ({"output_format": "tensor"}, "output_format='tensor'"),
        (
            {"output_format": "arrow", "nulls": "mask"},
            "nulls: only for output_format 'torch' and 'numpy'",
        ),
    ],
)
def test_bad_options_fail_at_construction(options: dict[str, Any], message: str) -> None:
    columns = {"a": pa.int64(), "b": pa.float32(), "t": pa.string(), "l": pa.list_(pa.int32())}
    schema = pa.schema({**columns, "r": pa.struct({"f": pa.float32()})})
    output_format = options.pop("output_format", "torch")
    with pytest.raises(ConfigError, match=message):
        BatchBuilder(schema, output_format=output_format, options=tensor_options(**options))


def test_what_is_no_arrow_data_is_refused() -> None:
    with pytest.raises(TypeError, match=r"__arrow_c_stream__.*got dict"):
        to_tensors({"a": [1]})
    with pytest.raises(DataError, match=r"1 of 2 rows are null as a whole"):
        to_tensors(pa.array([{"a": 1}, None]))
    with pytest.raises(ConfigError, match=r"wrap it in a table"):
        to_tensors(pa.array([1, 2]))
    assert to_tensors(pa.array([{"a": 1}, {"a": 2}]))["a"].tolist() == [1, 2]
    reader = pa.table({"a": [1, 2]}).to_reader()
    assert to_tensors(reader)["a"].tolist() == [1, 2]


def test_options_are_plain_json() -> None:
    text = tensor_options(
        nulls={"a": float("nan"), "b": np.float32(0.5)}, stack={"x": ["f"]}, pad={"l": (0, 4)}
    )
    assert json.loads(text)["nulls"] == {
        "columns": {"a": {"fill": {"float": "nan"}}, "b": {"fill": {"float": "0.5"}}}
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_keeps_the_options_that_it_was_made_with(num_workers: int) -> None:
    session = tq.Session()
    rows = {"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5.0, 6.0], "t": ["x", "y"], "l": [[1], [1, 2]]}
    session.register_table("rows", pa.table(rows))
    columns, known = ["a", "b"], ["x", "y"]
    nulls, stack, pad = {"c": 0.0}, {"s": columns}, {"l": (0, 2)}
    loader, _ = tq.create_dataloader(
        "SELECT * FROM rows",
        session=session,
        num_workers=num_workers,
        nulls=nulls,
        stack=stack,
        pad=pad,
        categories={"t": known},
    )
    columns.append("c")
    known.reverse()
    nulls["t"] = "mask"
    stack["other"] = ["c"]
    pad["l"] = (9, 5)
    for _ in range(2):
        (batch,) = loader
        assert {name: values.tolist() for name, values in batch.items()} == {
            "s": [[1, 3], [2, 4]],
            "c": [5, 6],
            "t": [0, 1],
            "l": [[1, 0], [1, 2]],
        }


def test_options_may_be_read_once_only() -> None:
    session = tq.Session()
    session.register_table("rows", pa.table({"a": [1], "b": [2], "t": ["y"]}))
    loader, _ = tq.create_dataloader(
        "SELECT * FROM rows",
        session=session,
        stack={"s": (name for name in "ba")},
        categories={"t": iter("xy")},
    )
    (batch,) = loader
    assert (batch["s"].tolist(), batch["t"].tolist()) == ([[2, 1]], [1])


@pytest.mark.slow
def test_libraries_are_imported_only_where_they_are_used() -> None:
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "pyarrow"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Block())
from tensorquery.loading.tensors import BatchBuilder, check_output_format
check_output_format("numpy")
for name, module in (("torch", "torch"), ("arrow", "pyarrow"), ("dict", "pyarrow")):
    try:
        check_output_format(name)
    except ImportError as error:
        assert f"pip install {module}" in str(error), error
    else:
        raise AssertionError(name)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "done", done.stderr
