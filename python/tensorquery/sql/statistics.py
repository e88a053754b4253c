"""Looks at the rows of a query: statistics of columns, a random sample, tables of other libraries."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = ["describe", "import_for", "sample"]

_STATISTICS = ("count", "nulls", "min", "max", "mean", "std", "approx_distinct")
_DICTIONARY = re.compile(r"Dictionary\(\w+, (?P<values>\w+(?:\(.*\))?)\)")


def import_for(what: str, module: str, extra: str) -> Any:
    """A module that only `what` needs.

    Args:
        what: What asks for it, as the user wrote it.
        module: The module's name.
        extra: The extra of this package that brings it.

    Raises:
        ImportError: It is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {module}: pip install 'tensorquery[{extra}]'") from error


def describe(query: _core.Query) -> pa.Table:
    """The body of `Query.describe`: one aggregate over all columns."""
    pyarrow = import_pyarrow()
    columns = query.columns()
    wanted = [_aggregates(name, kind) for name, kind, _ in columns]
    # Names of columns may be anything, so results go by number.
    numbered = [
        f'{sql} AS "{column}_{statistic}"'
        for column, found in enumerate(wanted)
        for statistic, sql in found.items()
    ]
    listed = ", ".join(['count(*) AS "rows"', *numbered])
    result = pyarrow.table(query.expressions(listed).collect())
    (row,) = result.to_pylist()
    rows = [
        {
            "column": name,
            "type": kind,
            "nulls": row["rows"] - row[f"{number}_count"],
            **{statistic: row[f"{number}_{statistic}"] for statistic in wanted[number]},
        }
        for number, (name, kind, _) in enumerate(columns)
    ]
    kinds = {
        "column": pyarrow.string(),
        "type": pyarrow.string(),
        "min": pyarrow.string(),
        "max": pyarrow.string(),
        "mean": pyarrow.float64(),
        "std": pyarrow.float64(),
    }
    names = ("column", "type", *_STATISTICS)
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.int64())) for name in names])
    return pyarrow.Table.from_pylist(rows, schema=schema)


def _aggregates(name: str, kind: str) -> dict[str, str]:
    """The aggregates that a column of this type has, as SQL."""
    column = _core.quote_identifier(name)
    encoded = _DICTIONARY.fullmatch(kind)
    if encoded is not None:
        kind = encoded["values"]
        column = f"arrow_cast({column}, '{kind}')"
    found = {"count": f"count({column})"}
    whole = re.match(r"U?Int\d", kind) is not None
    number = whole or re.match(r"Float|Decimal", kind) is not None
    text = kind in ("Utf8", "LargeUtf8", "Utf8View")
    moment = re.match(r"Date|Time", kind) is not None
    if number or text or moment or kind == "Boolean":
        # As text, so that all columns fit one table; text that stands for the value in SQL.
        found["min"] = f"CAST(min({column}) AS VARCHAR)"
        found["max"] = f"CAST(max({column}) AS VARCHAR)"
    if number or kind == "Boolean":
        found["mean"] = f"avg(CAST({column} AS DOUBLE))"
        found["std"] = f"stddev(CAST({column} AS DOUBLE))"
    if whole or re.match(r"Date32|Time", kind) or text or kind in ("Binary", "LargeBinary"):
        found["approx_distinct"] = f"approx_distinct({column})"
    elif number or moment or kind == "Boolean":
        # The sketch takes whole numbers and strings.
        found["approx_distinct"] = f"approx_distinct(CAST({column} AS VARCHAR))"
    return found


def sample(query: _core.Query, rows: int, seed: int) -> pa.Table:
    """The body of `Query.sample`.

    Each row of the query draws a number, in the query's order, and those with the smallest ones stay. So all sets of
    rows are equally likely, and no more than a few times `rows` are held.
    """
    pyarrow = import_pyarrow()
    reader = pyarrow.RecordBatchReader.from_stream(query.stream())
    # One stream of numbers, for any division of the rows into batches.
    random = np.random.default_rng(seed)
    most = max(4 * rows, _HELD)
    kept: list[Any] = []
    keys = np.empty(0)
    bound = 1.0
    for batch in _batches(reader) if rows else ():
        drawn = random.random(batch.num_rows)
        chosen = np.flatnonzero(drawn < bound)
        kept += _picked(reader.schema, [batch], chosen)
        keys = np.concatenate([keys, drawn[chosen]])
        if len(keys) > most:
            kept, keys = _smallest(reader.schema, kept, keys, rows)
            bound = float(keys.max())
    kept, _ = _smallest(reader.schema, kept, keys, rows)
    return pyarrow.Table.from_batches(kept, schema=reader.schema).combine_chunks()


_HELD = 10_000
"""Buffered rows above which rows that cannot stay are dropped."""


def _batches(reader: Any) -> Iterator[Any]:
    """The batches of a reader, whose errors are ours again."""
    pyarrow = import_pyarrow()
    try:
        yield from reader
    except (pyarrow.ArrowException, OSError) as error:
        # pyarrow passes on an error's message, not its type.
        raise DataError(str(error).removeprefix("External error: ")) from error


def _smallest(
    schema: pa.Schema, batches: list[Any], keys: np.ndarray, rows: int
) -> tuple[list[Any], np.ndarray]:
    """The rows with the smallest keys, in the order that they have."""
    if len(keys) <= rows:
        return batches, keys
    chosen = np.sort(np.argpartition(keys, rows)[:rows])
    return _picked(schema, batches, chosen), keys[chosen]


def _picked(schema: pa.Schema, batches: list[Any], chosen: np.ndarray) -> list[Any]:
    """Copies of some rows, by ascending numbers over all batches; pyarrow's `take` does not know all types."""
    pieces = []
    start = 0
    for batch in batches:
        first, last = np.searchsorted(chosen, [start, start + batch.num_rows])
        mine = chosen[first:last] - start
        start += batch.num_rows
        if len(mine):
            runs = np.split(mine, np.flatnonzero(np.diff(mine) != 1) + 1)
            pieces += [batch.slice(int(run[0]), len(run)) for run in runs]
    if not pieces:
        return []
    return [import_pyarrow().record_batch(_core.merge_batches(schema, pieces))]
