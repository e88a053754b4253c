"""`IcebergDataset`: Iceberg tables, as torch-dataloader-utils reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorquery.compat.base import CompatDataset, check_group, check_output
from tensorquery.compat.discovery import MissingFilesError
from tensorquery.compat.splits import DataFileInfo, IcebergDataFileInfo, SplitStrategy
from tensorquery.loading.create import _once_per_job
from tensorquery.loading.dataloader import QueryDataLoader
from tensorquery.sql.iceberg import register_from_config
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["IcebergDataset"]


class IcebergDataset(CompatDataset):
    """One rank's batches of an Iceberg table at one snapshot, without the rows that it has deleted.

    Args:
        table: ``namespace.table``, or ``catalog.namespace.table`` with any name for the catalog.
        catalog_config: The catalog's properties, as pyiceberg takes them, and its ``name``; see docs/catalogs.md.
        batch_size: Rows per batch; only the last of a rank is short.
        columns: Columns to keep; None keeps all.
        filters: A `pyarrow.compute.Expression`: the rows to keep; files and row groups that have none are not read.
        scan_filter: A pyiceberg expression by which data files are left out, instead of by `filters`. It does not filter
            rows.
        snapshot_id: The snapshot to read; None is the current one, for all epochs.
        shuffle: Permute the parts of files in each epoch.
        shuffle_seed: The seed of all shuffling.
        split_bytes: Stored bytes that a part grows towards, as an int or a string such as "64MiB"; None is 128 MiB.
        split_rows: Rows that a part grows towards; takes precedence.
        split_strategy: Deals data files to workers: an object with a three- or five-argument ``generate`` (see
            `SplitStrategy`), which gets the files to read, as `IcebergDataFileInfo`. None: parts of files, by weight.
        num_workers: How many workers are planned; the number in the DataLoader counts.
        output_format: "torch", "numpy", "arrow" or "dict".
        collate_fn: Required for "arrow" and "dict"; the DataLoader calls it.
        num_ranks: Number of ranks.
        rank: This rank.
        show_progress: Show a bar of tqdm per worker.
        progress_interval_sec: Seconds between two updates of a bar.
        shuffle_buffer_size: Rows per worker that are mixed; None or 0 mixes none.

    Raises:
        ConfigError: An option is malformed (also a `ValueError`); names the value and the allowed ones.
        TypeError: `filters` is no expression of pyarrow.
        TableNotFoundError: There is no such table.
        MissingFilesError: The table has no data file, or none that may hold a row of `filters` (also a
            `FileNotFoundError`).
        StorageError: The catalog or a store does not answer.
        ImportError: Bars are wanted, and tqdm is not installed.
    """

    def __init__(
        self,
        table: str,
        catalog_config: Mapping[str, Any],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: Any | None = None,
        snapshot_id: int | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | Any | None = None,
        num_workers: int = 1,
        output_format: str = "torch",
        collate_fn: Callable[[Any], Any] | None = None,
        num_ranks: int = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
    ) -> None:
        check_output(output_format, filters, collate_fn, show_progress)
        check_group(num_ranks, rank)
        # pyiceberg's name for a catalog without one; SQL catalogs keep it beside each table.
        config = {"name": "default", **catalog_config}
        session = Session()
        with _once_per_job(session, rank, num_ranks, None, None):
            name = register_from_config(
                session, table, config, snapshot_id=snapshot_id, scan_filter=scan_filter
            )
            query = session.table(name).select(columns, filters)

        def files() -> tuple[list[DataFileInfo], dict[str, str]]:
            found = _data_files(query)
            return [*found], {file.path: file.path for file in found}

        super().__init__(
            query,
            files,
            batch_size=batch_size,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            num_workers=num_workers,
            output_format=output_format,
            num_ranks=num_ranks,
            rank=rank,
            show_progress=show_progress,
            progress_interval_sec=progress_interval_sec,
            shuffle_buffer_size=shuffle_buffer_size,
        )
        assert self._plan.core is not None
        listed, pruned, _, _ = self._plan.core.pruning()
        if listed == pruned:
            raise MissingFilesError(
                f"{table} has no data file to read (snapshot_id={snapshot_id}, {listed} before pruning): look at the table, "
                "the snapshot and the filters"
            )

    @classmethod
    def create_dataloader(
        cls,
        table: str,
        catalog_config: Mapping[str, Any],
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        scan_filter: Any | None = None,
        snapshot_id: int | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | Any | None = None,
        num_workers: int | None = None,
        output_format: str = "torch",
        collate_fn: Callable[[Any], Any] | None = None,
        num_ranks: int = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
    ) -> tuple[QueryDataLoader, IcebergDataset]:
        """Make a DataLoader over an Iceberg table.

        Args:
            table: ``namespace.table``, or ``catalog.namespace.table`` with any name for the catalog.
            catalog_config: The catalog's properties, as pyiceberg takes them, and its ``name``; see docs/catalogs.md.
            batch_size: Rows per batch; only the last of a rank is short.
            columns: Columns to keep; None keeps all.
            filters: A `pyarrow.compute.Expression`: the rows to keep; files and row groups that have none are not read.
            scan_filter: A pyiceberg expression by which data files are left out, instead of by `filters`. It does not
                filter rows.
            snapshot_id: The snapshot to read; None is the current one, for all epochs.
            shuffle: Permute the parts of files in each epoch.
            shuffle_seed: The seed of all shuffling.
            split_bytes: Stored bytes that a part grows towards, as an int or a string such as "64MiB"; None is 128 MiB.
            split_rows: Rows that a part grows towards; takes precedence.
            split_strategy: Deals data files to workers: an object with a three- or five-argument ``generate`` (see
                `SplitStrategy`), which gets the files to read, as `IcebergDataFileInfo`. None: parts of files, by weight.
            num_workers: 0 decodes in Rust threads of this process; N starts N worker processes; None is
                max(1, cpus - 1).
            output_format: "torch", "numpy", "arrow" or "dict".
            collate_fn: Called on each batch, in the worker; required for "arrow" and "dict".
            num_ranks: Number of ranks.
            rank: This rank.
            show_progress: Show a bar of tqdm per worker.
            progress_interval_sec: Seconds between two updates of a bar.
            shuffle_buffer_size: Rows per worker that are mixed; None or 0 mixes none.

        Returns:
            The loader, and its dataset for `set_epoch`, `get_metrics`, `state_dict` and `load_state_dict`.

        Raises:
            ConfigError: An option is malformed (also a `ValueError`); names the value and the allowed ones.
            TypeError: `filters` is no expression of pyarrow.
            TableNotFoundError: There is no such table.
            MissingFilesError: The table has no data file, or none that may hold a row of `filters` (also a
                `FileNotFoundError`).
            StorageError: The catalog or a store does not answer.
            ImportError: Bars are wanted, and tqdm is not installed.
        """
        return cls._load(
            num_workers,
            collate_fn,
            table=table,
            catalog_config=catalog_config,
            batch_size=batch_size,
            columns=columns,
            filters=filters,
            scan_filter=scan_filter,
            snapshot_id=snapshot_id,
            shuffle=shuffle,
            shuffle_seed=shuffle_seed,
            split_bytes=split_bytes,
            split_rows=split_rows,
            split_strategy=split_strategy,
            output_format=output_format,
            num_ranks=num_ranks,
            rank=rank,
            show_progress=show_progress,
            progress_interval_sec=progress_interval_sec,
            shuffle_buffer_size=shuffle_buffer_size,
        )


def _data_files(query: Query) -> list[IcebergDataFileInfo]:
    """The data files that a query reads, with the rows that it reads of them."""
    found: dict[str, IcebergDataFileInfo] = {}
    for split in query.plan_shards(split_rows=1).splits():
        partition = {key: str(value) for key, value in split.partition_values.items()}
        file = found.setdefault(
            split.path,
            IcebergDataFileInfo(
                split.path, split.file_size, 0, partition or None, split.snapshot_id
            ),
        )
        if split.row_count is None or file.record_count is None:
            file.record_count = None
        else:
            file.record_count += split.row_count
    return [*found.values()]
