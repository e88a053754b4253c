"""Loaders over packs of sequences, and over batches with a budget of tokens.

The rows of the query lie in the row store (`QueryRows`). From their lengths each process plans the same packs, and a table in
memory says of each the row numbers of its documents. The loader delivers the rows of that table, so that each pack comes
exactly once, in equal steps, on any topology and after any resume; what reads a batch of them gathers the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.digests import digest
from tensorquery._util.options import check_positive_int, nearest_name
from tensorquery.distributed.topology import Topology, detect
from tensorquery.errors import ConfigError, DataError, UnsupportedTypeError
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.packed_batches import ReadPacks, ReadRows, Then, listed
from tensorquery.loading.query_rows import QueryRows
from tensorquery.loading.snapshot_pins import agreed
from tensorquery.loading.tensors import OF_TENSORS, Jagged
from tensorquery.sharding.packing import (
    MOST_TOKENS,
    Array,
    Pack,
    fill_of,
    permuted,
    plan_batches,
    plan_packs,
)
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

__all__ = ["Packing", "TokenBatches", "batching_of", "packed_query"]

OUTPUTS = ("position_ids", "document_ids", "document_rows", "cu_seqlens", "max_seqlen", "loss_mask")
"""The outputs of a batch of packs beside the query's columns."""

_READ_BYTES = 64 << 20
"""Bytes of rows that are read at once for their lengths."""

_SPLITS = 256
"""Splits of the table of packs, about."""


@dataclass(frozen=True)
class TokenBatches:
    """Batches of at most `budget` tokens: the options ``batch_tokens`` and ``bucket_by``."""

    budget: int
    bucket_by: str | None


@dataclass(frozen=True)
class Packing:
    """What was packed: ``dataset.packing``.

    Attributes:
        rows: The rows of the query by number; ``rows.quarantined`` has the bad parts that are left out.
        documents: Rows with tokens.
        empty: Rows without tokens; with `pack` they are in no batch.
        pieces: Documents, and pieces of those that are split.
        packs: Packs of an epoch, or batches with ``batch_tokens``, of all ranks together.
        tokens: Tokens of an epoch, of all ranks together.
        truncated: Tokens that ``long="truncate"`` leaves out.
        fill: The part of the packs' positions, or of the budget, that holds tokens.
    """

    rows: QueryRows
    documents: int
    empty: int
    pieces: int
    packs: int
    tokens: int
    truncated: int
    fill: float


def batching_of(pack: Any, batch_tokens: Any, bucket_by: Any) -> Pack | TokenBatches | None:
    """Check the options that make batches of something else than a number of rows.

    Raises:
        ConfigError: One is malformed, or two do not go together.
    """
    if pack is not None and not isinstance(pack, Pack):
        raise ConfigError(
            f'pack={pack!r} must be a tensorquery.Pack, such as tq.Pack(columns=["tokens"], length=4096)'
        )
    if batch_tokens is None:
        if bucket_by is not None:
            raise ConfigError(
                f"bucket_by={bucket_by!r} goes with batch_tokens=, the most tokens of a batch"
            )
        return pack
    if pack is not None:
        raise ConfigError(
            f"batch_tokens={batch_tokens!r} does not go with pack=, whose batches have batch_size * length tokens; use one"
        )
    if bucket_by is not None and not (isinstance(bucket_by, str) and bucket_by):
        raise ConfigError(f"bucket_by={bucket_by!r} must be the name of a column, or None")
    return TokenBatches(check_positive_int("batch_tokens", batch_tokens), bucket_by)


def packed_query(
    query: Any, options: LoaderOptions, batching: Pack | TokenBatches
) -> tuple[Query, LoaderOptions, Packing]:
    """Plan packs or batches of a query's rows.

    Returns:
        The query over the table of packs or batches, the options of the loader over it, and the report.

    Raises:
        ConfigError: An option does not go with packs; names it and what to do.
        UnsupportedTypeError: A packed column is no list of numbers.
        DataError: Packed columns differ in length in a row, or a row is beyond the budget; names the row.
    """
    name = "pack" if isinstance(batching, Pack) else "batch_tokens"
    _check_options(query, options, name)
    topology = detect(options.rank, options.world_size, options.process_group, options.device_mesh)
    query = agreed(query, topology, options.group)
    rows = QueryRows(
        query,
        nulls=options.nulls,
        stack=options.stack,
        pad=None if isinstance(batching, TokenBatches) else options.pad,
        categories=options.categories,
        decimal=options.decimal,
        split_bytes=options.split_bytes,
        split_rows=options.split_rows,
        on_error=options.on_error,
        stage=options.stage,
        stage_dir=options.stage_dir,
        stage_max_bytes=options.stage_max_bytes,
        stage_from=options.stage_from,
        stage_engine=options.stage_engine,
        stage_timeout=options.stage_timeout,
        show_progress=bool(options.show_progress),
    )
    read: Callable[[Any], Any]
    if isinstance(batching, Pack):
        columns, report = _packs(rows, options, batching)
        read = ReadPacks(rows, batching, options.output_format)
        identity: list[Any] = ["pack", *batching.identity]
    else:
        columns, report = _batches(rows, options, batching)
        read = ReadRows(rows, options.output)
        identity = ["tokens", batching.budget, batching.bucket_by, options.batch_size]
        options = replace(options, batch_size=1)
    _check_steps(report.packs, options, topology, name)
    pyarrow = import_pyarrow()
    table = pyarrow.table({key: _lists(pyarrow, *parts) for key, parts in columns.items()})
    # The name is part of a state's identity, and says what the table's numbers mean.
    known = digest([rows._fingerprint, identity, options.output.identity])
    session = Session()
    session.register_table(f"packs_{known}", table)
    over = replace(
        options,
        split_bytes=LoaderOptions.split_bytes,
        split_rows=max(1, -(-report.packs // _SPLITS)),
        on_error="raise",
        stage="auto",
        stage_dir=None,
        stage_max_bytes=None,
        stage_from=None,
        stage_engine=None,
        stage_timeout=None,
        # What reads them makes other arrays; only what JAX gets goes on to a device.
        output_format="jax" if options.output_format == "jax" else "numpy",
        nulls="error",
        stack=None,
        pad=None,
        categories=None,
        decimal="float64",
        keyed=None,
        transform=Then(read, options.transform),
    )
    return session.table(f"packs_{known}"), over, report


def _check_options(query: Any, options: LoaderOptions, name: str) -> None:
    """Refuse options that have no meaning for packs."""
    if not isinstance(query, Query):
        raise ConfigError(
            f"{name}= takes one query and no mixture; write the mixture as SQL (UNION ALL), or mix loaders in the training loop"
        )
    wrong = {
        f"sample_weight={options.sample_weight!r}": (
            options.sample_weight is not None,
            "draws single rows; sample in SQL (TABLESAMPLE)",
        ),
        "exclude=": (bool(options.exclude), "names rows of splits; leave rows out by filters="),
        f"on_transform_error={options.on_transform_error!r}": (
            options.on_transform_error != "raise",
            "leaves out single rows of a batch; let transform catch the error",
        ),
        "windows=": (options.windows is not None, "makes samples of fixed length; use one of them"),
        f"output_format={options.output_format!r}": (
            options.output_format
            not in (OF_TENSORS if name == "batch_tokens" else ("torch", "numpy", "jax")),
            'has no arrays; choose "torch", "numpy" or "jax"',
        ),
        "keyed=": (
            name == "pack" and bool(options.keyed),
            "makes batches of rows; carry the columns as they are",
        ),
    }
    for option, (is_given, reason) in wrong.items():
        if is_given:
            raise ConfigError(f"{option} does not go with {name}=: it {reason}")


def _check_steps(packs: int, options: LoaderOptions, topology: Topology, name: str) -> None:
    """Refuse unequal steps before anything is dealt."""
    ranks = topology.world_size
    if options.remainder == "even" and options.batch_size == 1 and packs % ranks:
        what = "packs in batches of one" if name == "pack" else "batches"
        way = f"give Pack(multiple={ranks}), or " if name == "pack" else ""
        raise ConfigError(
            f'{packs} {what} cannot be {ranks} ranks\' equal steps; {way}choose by name what gives: remainder="drop" leaves '
            'the last ones out, "pad" repeats some, and with "uneven" ranks take different steps'
        )


def _lists(pyarrow: Any, values: Array, ends: Array) -> Any:
    return pyarrow.LargeListArray.from_arrays(
        pyarrow.array(ends, pyarrow.int64()), pyarrow.array(values, pyarrow.int64())
    )


def _order(options: LoaderOptions, count: int) -> Array:
    """The rows in the order in which they are packed."""
    return permuted(count, options.shuffle_seed) if options.shuffle else np.arange(count)


Columns = dict[str, tuple[Array, Array]]
"""The lists of the table by column: values, and where each list begins, with the end of the last."""


def _packs(rows: QueryRows, options: LoaderOptions, pack: Pack) -> tuple[Columns, Packing]:
    if options.batch_size * pack.length > MOST_TOKENS:
        raise ConfigError(
            f"batch_size={options.batch_size} packs of length={pack.length} have more than {MOST_TOKENS} tokens, which cu_seqlens "
            "count in int32; use smaller batches"
        )
    _check_columns(rows, options, pack)
    lengths = _lengths(rows, pack.columns, rows.take)
    plan = plan_packs(lengths, _order(options, len(lengths)), pack)
    tokens, packs = int(plan.lengths.sum()), len(plan.ends) - 1
    documents = int(np.count_nonzero(lengths))
    report = Packing(
        rows,
        documents,
        len(lengths) - documents,
        len(plan.rows),
        packs,
        tokens,
        int(lengths.sum()) - tokens,
        fill_of(tokens, packs, pack.length),
    )
    columns = {"rows": plan.rows, "starts": plan.starts, "lengths": plan.lengths}
    return {name: (values, plan.ends) for name, values in columns.items()}, report


def _check_columns(rows: QueryRows, options: LoaderOptions, pack: Pack) -> None:
    """Check that the packed columns are there, hold lists of numbers, and clash with no output."""
    none = rows.take([])
    for column in pack.columns:
        if column not in none:
            near = nearest_name(column, none)
            hint = f"; did you mean {near!r}?" if near else f"; it has {', '.join(none)}"
            raise ConfigError(f"pack: the query has no column {column!r}{hint}")
        if options.pad is not None and column in options.pad:
            raise ConfigError(
                f"pad={{{column!r}: …}} fills up single rows, and pack= fills up packs; give Pack(pad=…) instead"
            )
        values = listed(column, none[column]).values
        value = pack.pad_of(column)
        if not _fits(value, values.dtype):
            raise ConfigError(f"pad={value!r} does not fit column {column!r} of {values.dtype}")
    clash = [name for name in none if name in OUTPUTS]
    if clash:
        raise ConfigError(
            f"column {clash[0]!r} has the name of an output of pack=; rename it in SQL (AS {clash[0]}_of_row)"
        )


def _fits(value: float, dtype: Any) -> bool:
    """Whether a column can hold a number; one of floats rounds it."""
    if dtype.kind == "f":
        return not math.isfinite(value) or abs(value) <= float(np.finfo(dtype).max)
    if not math.isfinite(value) or value != int(value):
        return False
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype)
    return int(limits.min) <= value <= int(limits.max)


def _lengths(rows: QueryRows, columns: Any, take: Callable[[range], Mapping[str, Any]]) -> Array:
    """The tokens of every row: read once, some rows at a time."""
    found = np.zeros(len(rows), np.int64)
    begin, at_once = 0, 1024
    while begin < len(rows):
        end = min(len(rows), begin + at_once)
        batch = take(range(begin, end))
        first, *others = (listed(column, batch[column]) for column in columns)
        lengths = np.diff(first.offsets)
        for column, other in zip(columns[1:], others, strict=True):
            wrong = np.flatnonzero(np.diff(other.offsets) != lengths)
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"row {begin + row} has {lengths[row]} elements in column {columns[0]!r} and {np.diff(other.offsets)[row]} in "
                    f"{column!r}; columns that are packed side by side need equal lengths in each row"
                )
        found[begin:end] = lengths
        size = sum(listed(column, batch[column]).values.nbytes for column in columns)
        at_once = max(1, min(65_536, _READ_BYTES * (end - begin) // max(1, size)))
        begin = end
    return found


def _batches(
    rows: QueryRows, options: LoaderOptions, batching: TokenBatches
) -> tuple[Columns, Packing]:
    lengths, column = _counted(rows, options, batching.bucket_by)
    numbers, ends = plan_batches(
        lengths,
        _order(options, len(lengths)),
        batching.budget,
        options.batch_size,
        sorts=batching.bucket_by is not None,
        padded=options.pad is not None and column in options.pad,
    )
    tokens, packs = int(lengths.sum()), len(ends) - 1
    documents = int(np.count_nonzero(lengths))
    report = Packing(
        rows,
        documents,
        len(lengths) - documents,
        len(lengths),
        packs,
        tokens,
        0,
        fill_of(tokens, packs, batching.budget),
    )
    return {"rows": (numbers, ends)}, report


def _counted(rows: QueryRows, options: LoaderOptions, column: str | None) -> tuple[Array, str]:
    """The tokens of every row, and the column that says them."""
    none = rows.take([])
    if column is None:
        lists = [name for name, values in none.items() if isinstance(values, Jagged)]
        if len(lists) != 1:
            raise ConfigError(
                f"batch_tokens={'' if not lists else ' could count ' + ' or '.join(lists) + ', and'} needs to know what it "
                "counts: give bucket_by=, a list column or a column of lengths"
            )
        [column] = lists
    if column not in none:
        near = nearest_name(column, none)
        hint = f"; did you mean {near!r}?" if near else f"; it has {', '.join(none)}"
        raise ConfigError(f"bucket_by={column!r} is no column of the query{hint}")
    values = none[column]
    if isinstance(values, Jagged):
        return _lengths(rows, [column], rows.take), column
    if not (isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"):
        raise UnsupportedTypeError(
            f"bucket_by={column!r} must be a list column or a column of whole numbers, the rows' lengths"
        )
    step = 65_536
    parts = [
        rows.take(range(begin, min(len(rows), begin + step)))[column]
        for begin in range(0, len(rows), step)
    ]
    lengths = np.concatenate([values, *parts])
    if len(lengths) and (lengths.min() < 0 or lengths.max() > MOST_TOKENS):
        row = int(np.flatnonzero((lengths < 0) | (lengths > MOST_TOKENS))[0])
        raise DataError(
            f"row {row} has {lengths[row]} in bucket_by={column!r}; a length is a number of 0 to {MOST_TOKENS}"
        )
    return lengths.astype(np.int64), column
