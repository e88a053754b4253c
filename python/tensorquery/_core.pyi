"""The compiled half of tensorquery: sessions, plans and streams in Rust.

Nothing here is public; the package wraps all of it. Errors are those of `tensorquery.errors`.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, final

__all__ = [
    "ArrowStream",
    "BatchStream",
    "Block",
    "Counter",
    "Plan",
    "Query",
    "Session",
    "Shards",
    "SplitCounter",
    "Stage",
    "TensorConverter",
    "__version__",
    "check_predicate",
    "merge_batches",
    "quote_identifier",
    "read_arrow",
]

class _ArrowSchema(Protocol):
    def __arrow_c_schema__(self) -> object: ...

_Rows: TypeAlias = Any
"""Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``."""

_TensorBatch: TypeAlias = tuple[
    int, Block, list[tuple[int, int]], list[list[str | bytes]], list[list[Any]]
]
"""Rows, block, (offset in bytes, count) by slot, strings by text column, categories."""

_SplitRow: TypeAlias = tuple[
    int,
    str,
    int,
    int | None,
    tuple[int, int] | None,
    int,
    str,
    list[tuple[str, str | None]],
    int | None,
]
"""Id, path, file size, rows, first row and one past the last, bytes, unit in words, hive values by column, snapshot."""

_ChangeRow: TypeAlias = tuple[str, int | None, int | None, tuple[int, int], tuple[int, int]]
"""Table, snapshot before and after, data files added and removed, delete files added and removed."""

_ShardRow: TypeAlias = tuple[int, int, int, int | None, int]
"""Rank, worker, splits, rows, bytes."""

__version__: str

@final
class Session:
    """The registered tables."""

    def __new__(
        cls, memory_limit: int | None = None, storage_options: Mapping[str, str] = ...
    ) -> Session:
        """Make an empty session; `memory_limit` is in bytes."""
    def register_files(
        self, name: str, paths: Sequence[str], options: str, schema: _ArrowSchema | None = None
    ) -> None:
        """List, pin and register files; `options` is JSON."""
    def register_arrow(self, name: str, data: _Rows) -> None:
        """Register rows held in memory."""
    def register_view(self, name: str, sql: str) -> None:
        """Register a query under a name."""
    def deregister(self, name: str) -> None:
        """Remove a table."""
    def tables(self) -> list[tuple[str, str, int | None, int | None, int | None]]:
        """Name, kind, files, bytes and rows of each table, by name."""
    def register_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Register an Iceberg catalog by pyiceberg's properties."""
    def catalogs(self) -> list[str]:
        """The names of the registered catalogs."""
    def list_catalog(
        self, catalog: str, parent: Sequence[str]
    ) -> tuple[list[list[str]], list[str]]:
        """The namespaces below `parent`, and the tables in it."""
    def register_iceberg_table(
        self, name: str, origin: str, at: str, scan_filter: str | None = None
    ) -> None:
        """Register one Iceberg table; `origin` and `at` are JSON."""
    def query(self, sql: str) -> Query:
        """Make a lazy query of one read-only statement."""

@final
class Query:
    """A lazy query."""

    @property
    def sql(self) -> str:
        """The SQL as it was written."""
    def select(self, columns: Sequence[str] | None = None, predicate: str | None = None) -> Query:
        """Some columns (None: all) of the rows that a predicate keeps."""
    def refreshed(self, at: Mapping[str, tuple[int, int]] = ...) -> tuple[Query, list[_ChangeRow]]:
        """The query over its Iceberg tables as they are now, or at these snapshots; and what changed."""
    def snapshots(self) -> dict[str, tuple[int, int]]:
        """The pinned snapshots of Iceberg tables and the schemas they are read with, by table."""
    def __arrow_c_schema__(self) -> object: ...
    def columns(self) -> list[tuple[str, str, bool]]:
        """Name, type in words and nullability of each output column."""
    def stream(self) -> ArrowStream:
        """Run the query; its rows arrive as they are computed."""
    def collect(self) -> ArrowStream:
        """Run the query to its end."""
    def head(self, rows: int) -> ArrowStream:
        """Read the first rows."""
    def count(self) -> int:
        """Count the rows; from metadata where that suffices."""
    def explain(self) -> str:
        """DataFusion's plan, and the plan by splits or why there is none."""
    def union_all(self, others: Sequence[Query]) -> tuple[Query, list[int]]:
        """The rows of several queries, one after the other; and the driving scans of each."""
    def plan(self, split_bytes: int, split_rows: int | None = None, explicit: bool = False) -> Plan:
        """Find the splits; `explicit` says whether the user chose the sizes."""

@final
class Plan:
    """A query by splits."""

    @staticmethod
    def from_recipe(text: str, blobs: Sequence[bytes]) -> Plan:
        """Plan again what `recipe` described."""
    @property
    def fingerprint(self) -> str:
        """Identifies the query's rows and their splits."""
    @property
    def num_splits(self) -> int:
        """Number of splits."""
    def __arrow_c_schema__(self) -> object: ...
    def splits(self, ids: Sequence[int]) -> list[_SplitRow]:
        """Describe the splits with these ids."""
    def pruning(self) -> tuple[int, int, int, int]:
        """Files, files pruned, row groups of the listed files, row groups pruned."""
    def assign(self, world_size: int, num_workers: int, strategy: str) -> list[list[int]]:
        """Deal split ids to shards ``rank * workers + worker`` by "lpt" or "round_robin"."""
    def check_cover(
        self, lists: Sequence[Sequence[int]], world_size: int, num_workers: int
    ) -> None:
        """Check that the lists, one per shard, hold every split once."""
    def summarize(
        self, lists: Sequence[Sequence[int]], world_size: int, num_workers: int
    ) -> tuple[list[_ShardRow], float, float]:
        """What each shard reads, and the imbalance over shards and over ranks."""
    def recipe(self, ids: Sequence[int]) -> tuple[str, list[bytes]]:
        """What a worker process needs to plan these splits (ascending ids) again."""
    def sorted_by(self) -> list[tuple[str, bool]]:
        """Output columns by which Parquet row groups are sorted, and whether descending; reads nothing."""
    def known_counts(self) -> list[int] | None:
        """Output rows by split, where metadata says them all without a look at any row."""
    def counter(self) -> SplitCounter:
        """Plan the counting of output rows; one counter collects the build sides of joins once."""
    def stream(
        self,
        shards: Shards,
        rank: int,
        worker: int,
        cursor: Sequence[int],
        threads: int,
        tensor_options: str | None,
        stage: Stage | None = None,
    ) -> BatchStream:
        """Start reading a shard from a cursor on; JSON options make tensors, None Arrow batches."""
    def stream_taken(
        self,
        shards: Shards,
        rank: int,
        worker: int,
        counter: Counter,
        iteration: int,
        threads: int,
        tensor_options: str | None,
    ) -> BatchStream:
        """Start reading what a worker takes of its rank's pieces, as long as the iteration is under way."""
    def positions(
        self, shards: Shards, rank: int, worker: int, cursor: Sequence[int], counts: Sequence[int]
    ) -> BatchStream:
        """What a shard would deliver, as split and output row, without reading any."""
    @property
    def bytes(self) -> int:
        """Stored bytes of all splits."""
    def row_bytes(self) -> int:
        """Guess the bytes that a decoded row takes."""
    def scans(self) -> list[int]:
        """By split, the driving scan that it belongs to."""
    def files(self) -> list[tuple[str, str]]:
        """Name and identity of every file or table in memory that the query can read."""
    def options(self) -> str:
        """How splits were cut, as text."""
    def shape(self) -> str:
        """DataFusion's plan before the splits were put in."""
    def row_range(self, id: int) -> tuple[int, int] | None:
        """Start and end of a split's rows in its file, where known."""
    def numbering(self, id: int) -> Literal["file", "table", "split"]:
        """From where physical rows of a split are counted."""
    def physical_rows(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """By split, the physical row behind each of these output rows; executes the splits."""
    def file_row_groups(self, id: int) -> list[tuple[int, int]]:
        """Start and end of each row group of a split's file, in physical rows; none but for Parquet."""
    def row_groups(self, id: int) -> tuple[int, int] | None:
        """First and one past the last row group of a Parquet split."""
    def explain(self) -> str:
        """The plan whose partitions are the splits, as an indented tree."""

@final
class SplitCounter:
    """Counts output rows of a plan's splits."""

    def count(
        self,
        ids: Sequence[int],
        threads: int,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[tuple[int, bool]]:
        """Output rows of each split, and whether it was read.

        `progress` gets the splits and the rows counted so far; what it raises ends the counting.
        """

@final
class Stage:
    """A query's rows on local disk, numbered in the order of its splits; for access at random."""

    @staticmethod
    def ensure(
        plan: Plan,
        root: str | os.PathLike[str],
        threads: int,
        progress: Callable[[int, int, int, int], object] | None = None,
    ) -> Stage:
        """Open the stage in ``<root>/<fingerprint>``, or write it; of several processes one does.

        `progress` is called now and then with splits done, splits (0 while waiting for another
        process), rows and bytes.
        """
    @staticmethod
    def open(dir: str | os.PathLike[str], fingerprint: str) -> Stage:
        """Open a complete stage of the plan with this fingerprint."""
    @property
    def num_rows(self) -> int:
        """Number of rows."""
    @property
    def path(self) -> str:
        """Its directory."""
    @property
    def bytes(self) -> int:
        """Bytes of its files of rows."""
    def gather(self, rows: Sequence[int]) -> _Rows:
        """Copy rows by number, in the order given, into one Arrow record batch."""
    def remove(self) -> None:
        """Delete its files; whoever has it open keeps reading."""

@final
class Shards:
    """All shards of an epoch, in reading order."""

    @staticmethod
    def deal(plan: Plan, request: str, lists: Sequence[Sequence[int]] | None) -> Shards:
        """Deal a plan's rows; `request` is JSON, `lists` are those of a custom strategy."""
    def size(self, rank: int, worker: int) -> tuple[int | None, int | None]:
        """Batches and rows of a shard, where they are counted."""
    def rows(self, rank: int, worker: int) -> int | None:
        """Rows of a shard without those that it repeats, where they are counted."""
    def permuted(self, positions: Sequence[tuple[int, int]], len: int) -> list[int]:
        """The rows at these positions (run, and row of it) of a permutation of `len` rows."""
    def is_fixed(self, rank: int, worker: int) -> bool:
        """Whether the number of a shard's batches is known before it ends."""
    def cursor_of(self, run: str, rank: int, worker: int) -> list[int]:
        """How far a shard came in `run` (JSON), which had the same shards."""
    def cursor_at(self, rank: int, worker: int, batches: int) -> list[int]:
        """The cursor of a shard of counted rows after so many batches."""
    def num_pieces(self, rank: int) -> int:
        """How many pieces the workers of a rank take, where they share them."""
    def pieces(self, rank: int, worker: int) -> list[tuple[int, int, int | None]]:
        """Split, first row and one past the last of every piece of a shard."""

@final
class Counter:
    """One number of a shared int64 tensor, from which workers take pieces."""

    def __new__(cls, tensor: Any, index: int) -> Counter:
        """Wrap number `index` of the tensor, which stays alive."""
    def begin(self) -> int:
        """Start an iteration and return its number; workers of earlier ones take no more."""
    @property
    def iteration(self) -> int:
        """The iteration under way."""

@final
class BatchStream:
    """The batches of one shard and epoch; reading goes on in the background."""

    def next(self) -> _TensorBatch | _Rows | None:
        """Wait for the next batch; None at the end."""
    def cursor(self) -> list[int]:
        """How far the shard is consumed with the batch handed out last."""
    def consumed(self) -> list[int]:
        """Pieces taken that were consumed between the batch before and the one handed out last."""
    def taken(self) -> list[int]:
        """All pieces that were taken so far."""
    @property
    def last(self) -> bool:
        """Whether the batch handed out last is the shard's last."""
    def close(self) -> None:
        """Stop the background work."""
    def metrics(self) -> dict[str, float]:
        """Rows, batches and splits handed out; seconds waited and converting; bytes, requests."""

@final
class ArrowStream:
    """Record batches that any Arrow library consumes once."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class Block:
    """The memory of one batch, as a writable buffer. Each tensor over it keeps it alive."""

    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class TensorConverter:
    """Converts Arrow batches of one schema."""

    def __new__(cls, schema: _ArrowSchema, options: str) -> TensorConverter:
        """Plan the conversion; `options` is JSON."""
    def outputs(self) -> str:
        """The outputs as JSON: a list of {name, kind, ...}."""
    def convert(self, pieces: Sequence[_Rows]) -> _TensorBatch:
        """Gather batches into one."""

def read_arrow(data: _Rows) -> tuple[_ArrowSchema, list[_Rows]]:
    """Read an Arrow object of any library into its schema and batches."""

def merge_batches(schema: _ArrowSchema, pieces: Sequence[_Rows]) -> _Rows:
    """Make one batch of the rows of all pieces."""

def check_predicate(text: str) -> None:
    """Raise where `text` is not one boolean SQL expression."""

def quote_identifier(name: str) -> str:
    """Write `name` as an SQL identifier in double quotes."""
