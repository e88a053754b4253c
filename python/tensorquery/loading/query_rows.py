"""`QueryRows`: the rows of a query by number, as a map-style dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorquery import _core
from tensorquery._util.cpus import cpu_count
from tensorquery._util.options import check_bool
from tensorquery.distributed.topology import Topology
from tensorquery.loading.shared_plan import find_plan
from tensorquery.loading.tensors import BatchBuilder, Encoded, Jagged, tensor_options
from tensorquery.sharding.bad_files import Quarantine, Quarantined, check_on_error
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES
from tensorquery.sql.materialize import Staging
from tensorquery.sql.query import Query, QuerySource, query_of
from tensorquery.sql.row_store import open_stage

if TYPE_CHECKING:
    import numpy as np

__all__ = ["QueryRows"]

_AT_ONCE = 1024
"""Rows that iterating reads together."""


class QueryRows:
    """The rows of a query by number: a map-style dataset for torch's DataLoader, samplers, retrieval and evaluation.

    Row i is the i-th row that one rank without workers and without shuffling delivers: files in their order, rows in file order,
    or the order of ``ORDER BY``. It is the same in every process, for any number of ranks and any size of splits.
    `Trace.row_numbers` are numbers of this kind.

    The rows are written to local disk once, as for ``shuffle="global"`` (`$TENSORQUERY_STAGES`), checked against their
    checksums, and mapped into memory: all processes of a machine share them, and a later run finds them again. Worker
    processes, forked or spawned, get the place of the rows and not the rows. torch is not needed.

    ``rows[i]`` is one row, a dict of scalars; a negative `i` counts from the end. ``rows[2:9]`` and ``rows[[5, 1, 5]]`` are
    several, as `take` returns them.

    Args:
        query: The rows: ``session.sql(…)``, ``session.table(…)``, or SQL as text.
        session: The session of a query that is text.
        nulls: What a null becomes: "error", "nan", "mask", a fill value, or a dict of these by column; see `to_tensors`.
        stack: ``{"x": ["f0", "f1"]}`` packs columns into one (N, F) array.
        pad: Padding of variable lists by column: a value, or (value, length).
        categories: Stable codes for strings by column: the list of all values.
        decimal: "float64", or "int64" for unscaled integers.
        split_bytes: Stored bytes that a split grows towards. A loader with the same value and ``shuffle="global"`` shares the
            rows on disk.
        split_rows: Rows that a split grows towards; takes precedence.
        on_error: "raise", or "skip" to leave bad files, row groups, stripes and byte ranges out; see `quarantined`.
        stage: What happens to a query, or a part of one, that cannot run split by split: "auto", "never" or "always"; this and
            the options below are those of `create_dataloader`.
        stage_dir: Where staged rows of such parts are kept.
        stage_max_bytes: Bytes of all stages there.
        stage_from: Rows of this query that another engine has computed.
        stage_engine: The URL of a cluster that computes staged parts.
        stage_timeout: Seconds to wait for another process that builds; None is an hour.
        show_progress: Show a bar while rows are written.

    Raises:
        ConfigError: An option is malformed, or this is no query; names the value and the allowed ones.
        UnsupportedTypeError: A column has no array form; names the column and its type.
        NotShardableError: A part cannot run split by split, and ``stage="never"``.
        StorageError: There is no room for the rows, or no permission to write them; names the folder.
        DataError: A file cannot be read.
    """

    def __init__(
        self,
        query: Query | str,
        *,
        session: QuerySource | None = None,
        nulls: Any = "error",
        stack: Mapping[str, Sequence[str]] | None = None,
        pad: Mapping[str, Any] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        decimal: str = "float64",
        split_bytes: int | str = DEFAULT_SPLIT_BYTES,
        split_rows: int | None = None,
        on_error: str = "raise",
        stage: str = "auto",
        stage_dir: str | os.PathLike[str] | None = None,
        stage_max_bytes: int | str | None = None,
        stage_from: str | os.PathLike[str] | Query | None = None,
        stage_engine: str | None = None,
        stage_timeout: float | None = None,
        show_progress: bool = False,
    ) -> None:
        query = query_of(query, session)
        check_bool("show_progress", show_progress)
        skips = check_on_error(on_error)
        self._options = tensor_options(
            nulls=nulls, stack=stack, pad=pad, categories=categories, decimal=decimal
        )
        staging = Staging.of(
            stage,
            stage_dir,
            stage_timeout,
            stage_from,
            stage_engine,
            show_progress,
            stage_max_bytes,
        )
        # A column without an array form is told before anything is staged.
        BatchBuilder(query._core, output_format="numpy", options=self._options)
        # A stage of a part stays as long as the query that reads it.
        staged = staging.apply(query)
        plan = find_plan(staged, (split_bytes, split_rows), None, None, {}, tolerant=skips).plan
        quarantine = Quarantine(staged._core, plan, skips=skips)
        if skips:
            plan = quarantine.settle(
                topology=Topology(0, 1),
                process_group=None,
                show_progress=show_progress,
                threads=cpu_count(),
            )
        self._quarantined = quarantine.listed
        store = open_stage(plan, threads=cpu_count(), show_progress=show_progress)
        self._fingerprint, self._path, self._rows = plan.fingerprint, store.path, store.num_rows
        self._store: _core.Stage | None = store
        self._builder: BatchBuilder | None = None

    @property
    def path(self) -> str:
        """The folder of the rows on disk."""
        return self._path

    @property
    def columns(self) -> list[str]:
        """The names in every row, in their order."""
        return self._open()[1].names

    @property
    def quarantined(self) -> list[Quarantined]:
        """The bad files, row groups, stripes and byte ranges that are left out, with ``on_error="skip"``."""
        return list(self._quarantined)

    def __len__(self) -> int:
        """Number of rows."""
        return self._rows

    def take(self, indices: Any) -> dict[str, Any]:
        """The rows with these numbers, in the order given; a row may be named several times.

        Args:
            indices: Whole numbers: a list, a range, an array of NumPy, a tensor or anything else that NumPy reads; negative ones
                count from the end.

        Returns:
            Column name to what ``output_format="numpy"`` of a loader gives: a NumPy array of shape (N,) or (N, K), a list of
            str or bytes for texts, `Jagged` for variable lists, `Encoded` for categories, and a dict for structs.

        Raises:
            IndexError: A number is out of range; names it and the number of rows.
            TypeError: They are no whole numbers in one dimension.
            DataError: A null that the policy does not cover; names the column.
        """
        store, builder = self._open()
        assert builder.converter is not None
        found = builder.build(store.take(self._numbers(indices), builder.converter))
        return dict(found)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """One row as a dict of scalars; of a slice or several numbers, the rows as `take` returns them."""
        if isinstance(index, slice):
            return self.take(range(*index.indices(self._rows)))
        if isinstance(index, tuple):
            raise TypeError(
                f"rows are numbered in one dimension, got {index!r}; several of them are a list: rows[[1, 2]]"
            )
        if isinstance(index, str):
            raise TypeError(
                f"rows are chosen by number, got {index!r}; a column of some rows is rows.take([0, 1])[{index!r}]"
            )
        number = None if isinstance(index, bool) else _whole(index)
        if number is None:
            return self.take(index)
        return _row(self.take([number]), 0)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows for the batches of a DataLoader: a list of dicts, read together."""
        batch = self.take(indices)
        return [_row(batch, place) for place in range(len(indices))]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All rows in order, each as a dict of scalars."""
        for start in range(0, self._rows, _AT_ONCE):
            yield from self.__getitems__(range(start, min(start + _AT_ONCE, self._rows)))

    def _numbers(self, indices: Any) -> np.ndarray[Any, Any]:
        """Checked numbers of rows, each of at least 0."""
        import numpy as np

        if isinstance(indices, range):
            found = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
        else:
            found = np.asarray(indices)
        if found.ndim != 1:
            raise TypeError(
                f"take() wants whole numbers in one dimension, got {type(indices).__name__} of {found.ndim} dimensions; "
                "a single row is rows[i]"
            )
        if not found.size:
            return np.empty(0, np.uint64)
        if found.dtype == bool:
            raise TypeError(
                "take() wants the numbers of rows, got a mask of booleans; write take(np.flatnonzero(mask))"
            )
        if found.dtype == object and all(_whole(index) is not None for index in found):
            # Beyond 64 bits.
            raise self._out_of_range(max(found, key=abs))
        if found.dtype.kind not in "iu":
            raise TypeError(
                f"take() wants whole numbers, got {type(indices).__name__} of {found.dtype}; rows have numbers of 0 to "
                f"{self._rows - 1}"
            )
        if found.dtype.kind == "u":
            wrong = found >= self._rows
            numbers = found
        else:
            wrong = (found < -self._rows) | (found >= self._rows)
            # Adding to a narrow type could overflow.
            wide = found.astype(np.int64, copy=False)
            numbers = np.where(wide < 0, wide + self._rows, wide)
        if wrong.any():
            raise self._out_of_range(found[wrong][0])
        return np.ascontiguousarray(numbers, np.uint64)

    def _out_of_range(self, index: Any) -> IndexError:
        if not self._rows:
            return IndexError(f"row {index} is out of range: the query has no rows")
        return IndexError(
            f"row {index} is out of range: the query has {self._rows} rows, with numbers of 0 to {self._rows - 1}, or of "
            f"-{self._rows} to -1 from the end"
        )

    def _open(self) -> tuple[_core.Stage, BatchBuilder]:
        """The rows, and what makes arrays of them; in a worker process they are opened with the first row."""
        if self._store is None:
            self._store = _core.Stage.open(self._path, self._fingerprint)
        if self._builder is None:
            self._builder = BatchBuilder(self._store, output_format="numpy", options=self._options)
        return self._store, self._builder

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None, "_builder": None}

    def __repr__(self) -> str:
        return f"QueryRows({self._rows} rows of {', '.join(self.columns)}, in {self._path})"


def _whole(index: Any) -> int | None:
    """A number that stands for one row; None for anything else."""
    if isinstance(index, Sequence) or getattr(index, "ndim", None):
        return None
    try:
        return operator.index(index)
    except TypeError:
        return None


def _row(batch: Mapping[str, Any], place: int) -> dict[str, Any]:
    """One row of a batch."""
    return {name: _value(values, place) for name, values in batch.items()}


def _value(values: Any, place: int) -> Any:
    """The value of one row in a column of a batch."""
    if isinstance(values, Encoded):
        return values.categories[values.codes[place]]
    if isinstance(values, Jagged):
        return values.values[values.offsets[place] : values.offsets[place + 1]]
    if isinstance(values, dict):
        return _row(values, place)
    return values[place]
