"""Options of tensors fail at construction, naming the value, what was allowed and the fix."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorquery.errors import ConfigError, DataError
from tensorquery.tensors import BatchBuilder, tensor_options, to_tensors


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
        ({"stack": {"a": ["b"]}}, 'two outputs would be named "a"'),
        ({"pad": {"a": 0}}, '"a" is Int64, not a list'),
        ({"pad": {"l": (0, 0)}}, "max_length"),
        ({"pad": {"l": (0, 1, 2)}}, "value, max_length"),
        ({"pad": {"l": 0.5}}, "0.5 does not fit"),
        ({"categories": {"a": ["x"]}}, '"a" is Int64'),
        ({"categories": {"t": "xy"}}, "must be a list"),
        ({"decimal": "float32"}, "decimal='float32'"),
        ({"output_format": "tensor"}, "output_format='tensor'"),
        (
            {"output_format": "arrow", "nulls": "mask"},
            "nulls: only for output_format 'torch' and 'numpy'",
        ),
    ],
)
def test_bad_options_fail_at_construction(options: dict[str, Any], message: str) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("b", pa.float32()), ("t", pa.string()), ("l", pa.list_(pa.int32()))]
    )
    with pytest.raises(ConfigError, match=message):
        BatchBuilder(schema, **options)


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


def test_libraries_are_imported_only_where_they_are_used() -> None:
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "pyarrow"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Block())
from tensorquery.tensors import BatchBuilder, check_output_format
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
