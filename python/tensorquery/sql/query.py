"""Lazy queries."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.digests import digest
from tensorquery._util.options import (
    check_bool,
    check_choice,
    check_non_negative_int,
    check_positive_int,
    check_shards,
)
from tensorquery.display.query import query_html
from tensorquery.display.tree import operator_tree
from tensorquery.distributed.topology import Topology
from tensorquery.errors import ConfigError
from tensorquery.sharding.bad_files import Quarantined, of_files
from tensorquery.sharding.deal import Deal
from tensorquery.sharding.epochs import Epochs
from tensorquery.sharding.shard_plan import ShardPlan
from tensorquery.sharding.shards import SplitStrategy, check_strategy, plan_splits
from tensorquery.sql.filters.filter_forms import advised, narrowing
from tensorquery.sql.iceberg import SnapshotChange
from tensorquery.sql.known_nulls import plain_table
from tensorquery.sql.query_preview import preview
from tensorquery.sql.registry import Registry
from tensorquery.sql.stages import STAGE_MODES, bound_of, build_stages, place_of
from tensorquery.sql.statistics import describe, import_for, sample

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

__all__ = ["Query", "QuerySource", "query_of"]


class QuerySource(Registry):
    """The part of a `Session` that makes queries."""

    @abstractmethod
    def sql(self, query: str, *, on_error: str = "raise") -> Query:
        """Make a lazy query."""

    @abstractmethod
    def table(self, name: str) -> Query:
        """All rows and columns of a table."""


class Query:
    """One read-only SQL statement bound to a session. Made by `Session.sql`; nothing runs before asked.

    It has ``__arrow_c_stream__`` and ``__arrow_c_schema__``, so that pyarrow, polars, pandas, DuckDB and
    `Session.register_table` take it directly.
    """

    def __init__(
        self, session: QuerySource, core: _core.Query, narrowed: tuple[str, ...] = ()
    ) -> None:
        self._session = session
        self._core = core
        self._narrowed = narrowed

    @property
    def session(self) -> QuerySource:
        """The session it is bound to."""
        return self._session

    @property
    def sql(self) -> str:
        """The SQL as it was written."""
        return self._core.sql

    @property
    def schema(self) -> pa.Schema:
        """The output columns, as a `pyarrow.Schema`.

        Raises:
            ImportError: pyarrow is not installed.
        """
        return import_pyarrow().schema(self)

    @property
    def column_names(self) -> list[str]:
        """Names of the output columns, in order."""
        return [name for name, _, _ in self._core.columns()]

    def select(self, columns: Iterable[str] | None = None, filters: Any | None = None) -> Query:
        """Narrow the query.

        Args:
            columns: Output columns to keep, in this order (those of a set by name); None keeps all.
            filters: A SQL predicate over the output columns, a list in pyarrow's convention
                (``[("day", ">=", date), …]``, or a list of such lists for OR), or a
                ``pyarrow.compute.Expression``. SQL may call the session's functions and read its tables. Tables that
                the query names as well keep their state from when it was made.

        Returns:
            A new lazy query.

        Raises:
            QueryError: A column is unknown, or a filter is malformed; names the nearest column.
            TableNotFoundError: A filter names an unknown table.
            ConfigError: A name or a filter is not valid UTF-8.
        """
        return self._select(columns, filters)

    def _select(
        self, columns: Iterable[str] | None, filters: Any | None, on_error: str = "raise"
    ) -> Query:
        """`select`; with "skip" without the bad files that a filter names as tables."""
        if columns is None and filters is None:
            return self
        names, predicate = narrowing(columns, filters, self)
        base = self._narrowed or (self._core.sql,)
        narrowed = (*base, repr(names), repr(predicate))
        with advised(filters):
            core = self._session._narrow(self._core, names, predicate, on_error == "skip")
        found = Query(self._session, core, narrowed)
        if on_error == "skip":
            self._session._warn_of_skipped(found.quarantined)
        return found

    def _parts(self) -> dict[str, Any]:
        """Digests of the query, and of the columns and filters by which it was narrowed; pinned snapshots and moment."""
        parts, pins, moment = self._parts_without_pins(), self._pins(), self._core.moment()
        return {
            **parts,
            **({"snapshot": pins} if pins else {}),
            **({"moment": moment} if moment else {}),
        }

    def _parts_without_pins(self) -> dict[str, Any]:
        query, *narrowed = self._narrowed or (self._core.sql,)
        functions = dict(self._core.functions())
        return {
            **({"functions": functions} if functions else {}),
            "query": digest(query),
            "columns": digest([names for names in narrowed[::2] if names != "None"]),
            "filters": digest([predicate for predicate in narrowed[1::2] if predicate != "None"]),
        }

    def _pins(self) -> dict[str, list[int]]:
        """Snapshot and schema by Iceberg table, which a resumed run and every other rank pin again."""
        return {table: list(pin) for table, pin in self._core.snapshots().items()}

    @property
    def snapshots(self) -> dict[str, int]:
        """The pinned snapshots of its Iceberg tables, by the tables' names; empty without any."""
        return {table: snapshot for table, (snapshot, _) in self._core.snapshots().items()}

    @property
    def moment(self) -> str | None:
        """The value of `now()`, `current_date` and the like: fixed when the query was made, in ISO 8601.

        An instant in UTC, or a day where only `current_date` is called; None without such functions. All runs of this
        query and all loaders over it share one moment; a resumed loader takes the moment of its state.
        """
        return self._core.moment()

    @property
    def quarantined(self) -> list[Quarantined]:
        """Files that its tables were registered without (``on_error="skip"``); empty where all were read.

        Damage within a file is found by ``on_error="skip"`` of `create_dataloader`; running the query here
        raises.
        """
        return of_files(self._core.quarantined())

    def refresh(self) -> list[SnapshotChange]:
        """Move the pins of its Iceberg tables to the current snapshots (or to those of their branch or time now).

        Loaders that were made before keep the rows that they have: make a new one, or refresh it
        (`QueryDataset.refresh`) between two epochs. Where SQL names a snapshot or a tag, nothing moves.

        Returns:
            What changed, by table; empty where nothing did.

        Raises:
            QueryError: A column that the query names is gone.
            TableNotFoundError: A table was dropped.
            StorageError: A catalog does not answer.
        """
        self._core, changes = self._core.refreshed()
        return [
            SnapshotChange(table, before, after, *files, *deletes)
            for table, before, after, files, deletes in changes
        ]

    def _at(self, pins: Mapping[str, Sequence[int]]) -> Query:
        """This query at other snapshots and schemas, by table."""
        core, _ = self._core.refreshed({name: (pin[0], pin[1]) for name, pin in pins.items()})
        return Query(self._session, core, self._narrowed)

    def _at_moment(self, moment: str) -> Query:
        """This query where its functions of the time stand for another moment."""
        return Query(self._session, self._core.at_moment(moment), self._narrowed)

    def head(self, rows: int = 10) -> pa.Table:
        """The first rows.

        Args:
            rows: How many, at most.

        Returns:
            A `pyarrow.Table`.

        Raises:
            ConfigError: `rows` is not a whole number of at least 0.
            ImportError: pyarrow is not installed.
        """
        return import_pyarrow().table(self._core.head(check_non_negative_int("rows", rows)))

    def count(self) -> int:
        """The exact number of rows; from metadata where that suffices, else by running the query.

        Returns:
            The number of rows.

        Raises:
            DataError: A file cannot be read.
        """
        return self._core.count()

    def to_arrow(self) -> pa.Table:
        """Run the query in this process.

        Returns:
            All rows as a `pyarrow.Table`.

        Raises:
            ImportError: pyarrow is not installed.
            DataError: A file cannot be read.
        """
        return import_pyarrow().table(self._core.collect())

    def to_pandas(self) -> pd.DataFrame:
        """Run the query in this process, for pandas.

        Returns:
            All rows as a `pandas.DataFrame`.

        Raises:
            ImportError: pandas or pyarrow is not installed.
            DataError: A file cannot be read.
        """
        import_for("to_pandas()", "pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Run the query in this process, for polars.

        Returns:
            All rows as a `polars.DataFrame`; ``pl.LazyFrame`` and others take the query itself, too.

        Raises:
            ImportError: polars is not installed.
            DataError: A file cannot be read.
        """
        return import_for("to_polars()", "polars", "polars").DataFrame(self._core.collect())

    def describe(self) -> pa.Table:
        """Statistics of each output column, in one pass over the rows.

        Returns:
            A `pyarrow.Table` with a row per column: ``column`` and ``type``; ``count`` of values and ``nulls``; ``min`` and
            ``max`` of numbers, texts, times and booleans, as text; ``mean`` and ``std`` (of a sample, dividing by n - 1)
            of numbers and booleans; ``approx_distinct``, which is off by a few percent. Null where a type has
            no such thing. NaN is a value, and greater than all others.

        Raises:
            ImportError: pyarrow is not installed.
            DataError: A file cannot be read.
        """
        return describe(self._core)

    def sample(self, rows: int = 10, *, seed: int = 0) -> pa.Table:
        """Random rows of the query's result, each as likely as any other, none twice.

        All rows are read, and few are held. For a share of a table inside a query write TABLESAMPLE, which
        loaders can follow, too: ``docs/sampling.md``.

        Args:
            rows: How many; all where there are no more.
            seed: The same seed, query and files give the same rows.

        Returns:
            A `pyarrow.Table`, in the query's order.

        Raises:
            ImportError: pyarrow is not installed.
            ConfigError: `rows` or `seed` is no whole number of at least 0.
            DataError: A file cannot be read.
        """
        rows = check_non_negative_int("rows", rows)
        return sample(self._core, rows, check_non_negative_int("seed", seed))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._core.stream().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._core.__arrow_c_schema__()

    def explain(
        self,
        *,
        analyze: bool = False,
        stage: str = "auto",
        stage_dir: str | os.PathLike[str] | None = None,
    ) -> str:
        """DataFusion's physical plan, its staged parts with the reasons, and the plan by splits that a loader runs.

        Nothing runs, and nothing is staged, unless `analyze` is true.

        Args:
            analyze: Run the query once in this process, as `to_arrow` does but without keeping rows, and show for each operator
                the rows that it gave and the time that it computed. Then `stage` and `stage_dir` say nothing.
            stage: As for `create_dataloader`: "auto", "never" or "always".
            stage_dir: Where stages are looked for, as for `create_dataloader`; None is the default folder.

        Returns:
            Indented trees as text: the plan before, each part that runs once with the reason, and the plan after, in which a
            stage is a scan: with its rows and bytes where it is in `stage_dir`, else "not built yet". With
            ``stage="never"`` the last one says which operator is not row-local. With `analyze`, the tree of operators
            with rows, time and share of the times.

        Raises:
            QueryError: The query cannot be planned.
            DataError: With `analyze`, a file cannot be read.
            ConfigError: `analyze`, `stage` or `stage_dir` is malformed.
            StorageError: Something is staged, and `stage_dir` does not answer.
        """
        if check_bool("analyze", analyze):
            return operator_tree(self._core.analyze())
        return self._core.explain(stage, place_of(stage_dir))

    def _over(self, core: _core.Query) -> Query:
        """This query with its stages in place of the staged parts."""
        return Query(self._session, core, self._narrowed)

    def _sorted(self, columns: Sequence[str]) -> Query:
        """Its rows in ascending order of columns; it stays this query for a checkpoint."""
        core = self._core.sorted(columns)
        return Query(self._session, core, self._narrowed or (self._core.sql,))

    def _replaced(self, rows: Query, columns: Sequence[str]) -> Query:
        """Columns of another query's rows in the place of this one's; it stays this query for a checkpoint."""
        core = rows._core.expressions(", ".join(columns))
        return Query(self._session, core, self._narrowed or (self._core.sql,))

    def plan_shards(
        self,
        *,
        world_size: int = 1,
        num_workers: int = 0,
        batch_size: int | None = None,
        split_bytes: int | str = "128MiB",
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        shuffle: bool | str = False,
        shuffle_buffer_size: int | None = None,
        partitions: int | None = None,
        remainder: str = "even",
        stage: str = "auto",
        stage_dir: str | os.PathLike[str] | None = None,
    ) -> ShardPlan:
        """Show how the query's splits are dealt to shards, and how well they are mixed.

        No row is read, unless a part of the query has to be staged and is not yet: see `stage`.

        Args:
            world_size: Number of ranks.
            num_workers: Worker processes per rank; 0 reads in the training process.
            batch_size: Adds an upper bound of batches per shard and, where metadata says the output rows, the exact
                rows and steps of each rank.
            split_bytes: Stored bytes of the projected columns that a split grows towards, as an int or a
                string such as "64MiB". A split is at least one row group.
            split_rows: Rows that a split grows towards; takes precedence over `split_bytes`.
            split_strategy: "lpt" (default), "round_robin", or an object with
                ``generate(splits, num_shards, epoch)``.
            shuffle: As for `create_dataloader`; adds a prediction of how well rows are mixed, and a warning where
                the data is sorted and the window too small: `ShardPlan.quality`.
            shuffle_buffer_size: As for `create_dataloader`.
            partitions: As for `create_dataloader`; the prediction then says what they cost: the splits and windows
                that are open at a time on each rank.
            remainder: "even", "drop", "pad" or "uneven", as for `create_dataloader`.
            stage: As for `create_dataloader`; "never" reads no row.
            stage_dir: As for `create_dataloader`.

        Returns:
            The plan: print it, or turn it into a dict or a table.

        Raises:
            NotShardableError: The query is not row-local above one scan, with ``stage="never"``; names the operator.
            ConfigError: An option is malformed, or equal steps are impossible with this batch size.
        """
        world_size = check_positive_int("world_size", world_size)
        num_workers = check_non_negative_int("num_workers", num_workers)
        check_shards(world_size, num_workers)
        if batch_size is not None:
            batch_size = check_positive_int("batch_size", batch_size)
        if shuffle_buffer_size is not None:
            shuffle_buffer_size = check_positive_int("shuffle_buffer_size", shuffle_buffer_size)
        deal = Deal(
            batch_size=batch_size or 1,
            seed=0,
            shuffle=shuffle,
            buffer=shuffle_buffer_size,
            remainder=remainder,
            partitions=partitions,
            strategy=check_strategy(split_strategy),
        )
        check_choice("stage", stage, STAGE_MODES)
        staged = build_stages(self._core, stage, place_of(stage_dir), max_bytes=bound_of(None))
        plan = plan_splits(staged, split_bytes, split_rows)
        known = None if deal.is_global else plan.known_counts()
        epochs = Epochs(plan, deal, Topology(0, world_size), list, known)
        return ShardPlan(
            plan,
            world_size,
            num_workers,
            deal.strategy,
            batch_size=batch_size,
            epochs=epochs,
        )

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind, _ in self._core.columns())
        return f"Query({columns})\n{self.sql.strip()}"

    def _repr_html_(self) -> str:
        return query_html(preview(self._core, self.head, self._kind_of_table))

    def _kind_of_table(self) -> str | None:
        """The kind of the table whose columns the query reads as they are; None for all other queries."""
        name = None if self._narrowed else plain_table(self.sql)
        return next((table.kind for table in self.session.tables if table.name == name), None)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "a Query cannot be pickled; pass the dataset or loader made from it, which carries what "
            "worker processes need"
        )


def query_of(query: Query | str, session: QuerySource | None) -> Query:
    """The query that a user gave: one, or its text and the session that it belongs to.

    Raises:
        ConfigError: It is neither, or there is no session for the text, or another one for the query.
    """
    if isinstance(query, Query):
        if session is not None and session is not query.session:
            raise ConfigError(
                "the query belongs to another session than session=; pass one of them"
            )
        return query
    if not isinstance(query, str):
        raise ConfigError(
            f"query must be a Query or SQL, not {query!r}; make one with session.sql(…) or session.table(…)"
        )
    if not isinstance(session, QuerySource):
        raise ConfigError(
            f"a query that is text needs session=, a tensorquery.Session, not {session!r}"
        )
    return session.sql(query)
