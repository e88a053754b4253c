"""Functions for the tests of Python functions in SQL: importable by name, as worker processes import them."""

import pyarrow as pa
import pyarrow.compute as pc


def twice(x):
    return pc.multiply(x, 2)


def text_length(s):
    return pc.cast(pc.utf8_length(s), pa.int64())


def fails_on_17(x):
    if 17 in x.to_pylist():
        raise ValueError("seventeen is not a number I like")
    return x
