"""The compiled half of tensorquery: sessions, plans and streams in Rust.

Nothing here is public; the package wraps all of it. Errors have the types of `tensorquery.errors`.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self, TypeAlias, final

from typing_extensions import disjoint_base

from tensorquery.sql.credentials import Credentials
from tensorquery.sql.functions import Function
from tensorquery.sql.storage import Files

__all__ = [
    "FINGERPRINT_VERSION",
    "ArrowStream",
    "BatchStream",
    "Block",
    "Counter",
    "Definition",
    "Delivery",
    "Lease",
    "LooseBlock",
    "Plan",
    "Query",
    "RankShare",
    "Session",
    "Shards",
    "SplitCounter",
    "SplitVerifier",
    "Stage",
    "TensorConverter",
    "Windows",
    "__version__",
    "bounds",
    "clear_stages",
    "copy_pieces",
    "end_calls",
    "function_types",
    "list_stages",
    "lower_bound",
    "mark_pieces",
    "merge_batches",
    "quote_identifier",
    "read_arrow",
    "set_log_level",
    "slice_rows",
    "stage_query",
    "stages_of",
]

class _ArrowSchema(Protocol):
    def __arrow_c_schema__(self) -> object: ...

_Rows: TypeAlias = Any
"""Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``."""

_Buffer: TypeAlias = Any
"""A contiguous array, by the buffer protocol."""

_TensorBatch: TypeAlias = tuple[
    int, Block, list[tuple[int, int] | Block], list[list[str | bytes]], list[list[Any]]
]
"""Rows, block, (offset in bytes, count) by slot, or the block of a lent one, strings by text column, categories."""

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
_Mixing: TypeAlias = tuple[int, int, int | None]
"""Open splits of a shard, the rows of their turns, the rows of a window."""

__version__: str

FINGERPRINT_VERSION: int
"""The version of the forms that fingerprints digest; each form begins with it."""

@final
class Session:
    """The registered tables."""

    def __new__(
        cls,
        memory_limit: int | None = None,
        storage_options: str = "{}",
        local_cache: tuple[str, int] | None = None,
        credentials: Credentials | None = None,
        plan_cache: str | None = None,
    ) -> Session:
        """Make an empty session; `memory_limit` is in bytes, `local_cache` a folder and its size in bytes, `storage_options` JSON."""
    def cache_trouble(self) -> str | None:
        """The reason why the local cache was not used, once."""
    def take_warnings(self) -> list[str]:
        """Problems of the plan cache since the last call."""
    def table_memo(self, name: str) -> bytes:
        """Memo for `register_files` in another process: files, pins and schema of a registered table."""
    def view_memos(self, name: str) -> list[tuple[str, bytes]]:
        """Memos of the path literals of a view, by path."""
    def register_files(
        self,
        name: str,
        paths: Sequence[str],
        options: str,
        schema: _ArrowSchema | None = None,
        credentials: Credentials | None = None,
        files: Files | None = None,
        memo: bytes | None = None,
    ) -> None:
        """List, pin and register files; `options` is JSON. Paths belong to `files` if it is given.

        With `memo`, which `table_memo` gave in another process, nothing is listed.
        """
    def register_arrow(self, name: str, data: _Rows) -> None:
        """Register rows held in memory."""
    def register_function(self, function: Function) -> None:
        """Register a function for SQL."""
    def deregister_function(self, name: str) -> None:
        """Remove a function."""
    def functions(self) -> list[tuple[str, list[str], str, str]]:
        """Name, types of the arguments, return type and volatility of each registered function."""
    def register_view(
        self, name: str, definition: Definition, paths: Sequence[tuple[str, bytes]] = ...
    ) -> None:
        """Register a query under a name; `paths` are memos of path literals that another process has listed."""
    def deregister(self, name: str) -> None:
        """Remove a table."""
    def tables(
        self,
    ) -> list[tuple[str, str, int | None, int | None, int | None, list[tuple[str, str]]]]:
        """Name, kind, files, bytes and rows of each table, by name; path and error of files left out."""
    def register_catalog(
        self, name: str, properties: Mapping[str, str], storage_options: str = "{}"
    ) -> None:
        """Register a catalog by pyiceberg's properties; `storage_options` is JSON, for the stores of Delta tables."""
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

    def register_delta(
        self,
        name: str,
        location: str,
        at: str,
        storage_options: str = "{}",
        credentials: Any | None = None,
        files: Any | None = None,
        scan_filter: str | None = None,
    ) -> None:
        """Register one Delta table; `at` and `storage_options` are JSON."""

    def parse(self, sql: str) -> Definition:
        """Parse one read-only statement."""
    def query(
        self,
        definition: Definition,
        skip_bad: bool = False,
        paths: Sequence[tuple[str, bytes]] = ...,
    ) -> Query:
        """Make a lazy query of a statement.

        With `skip_bad`, files of path literals that cannot be read are left out; `paths` as for `register_view`.
        """

@final
class Definition:
    """A query as it was asked for, parsed and not bound."""

    @property
    def paths(self) -> list[str]:
        """The paths that its last layer names as tables."""
    @property
    def sql(self) -> str:
        """Its SQL, as people read it."""

@final
class Query:
    """A lazy query."""

    @property
    def sql(self) -> str:
        """Its SQL, as people read it."""
    def narrowed(
        self,
        session: Session,
        columns: Sequence[str] | None = None,
        predicate: str | None = None,
    ) -> Definition:
        """Define some columns (None: all) of the rows that a predicate keeps, for `select`."""
    def select(
        self,
        session: Session,
        definition: Definition,
        skip_bad: bool = False,
        paths: Sequence[tuple[str, bytes]] = ...,
    ) -> Query:
        """Make the query of a definition that `narrowed` made, which may name what the session knows.

        `skip_bad` and `paths` as for `Session.query`.
        """
    def expressions(self, list: str) -> Query:
        """Make the query of expressions over the rows, as they stand behind SELECT."""
    def sorted(self, columns: Sequence[str]) -> Query:
        """Make the query of its rows in ascending order of columns."""
    def refreshed(self, at: Mapping[str, tuple[int, int]] = ...) -> tuple[Query, list[_ChangeRow]]:
        """The query over its Iceberg tables as they are now, or at these snapshots; and what changed."""
    def moment(self) -> str | None:
        """The moment of its functions of the time, in ISO 8601; None where it has none."""
    def at_moment(self, moment: str) -> Query:
        """This query at another moment."""
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
    def explain(self, stage: str, place: str) -> str:
        """DataFusion's plan, its staged parts with the reasons, and the plan by splits; with the sizes of stages in `place`."""
    def analyze(self) -> list[tuple[int, str, int | None, int | None]]:
        """Run the query; depth, description, rows and nanoseconds of each operator, in pre-order."""
    def union_all(self, others: Sequence[Query], stage: str) -> tuple[Query, list[int]]:
        """The rows of several queries, one after the other; and the driving scans of each."""
    def files(self) -> list[tuple[str, str]]:
        """Name and identity of every file or table in memory that the query can read."""
    def table_files(self) -> list[tuple[str, str]]:
        """Path and identity of every file of its tables, as splits name them; that of a file of a lake table is empty."""
    def functions(self) -> list[tuple[str, str]]:
        """Name and digest of every function of the user's that the query calls."""
    def take_warnings(self) -> list[str]:
        """Problems of the session's plan cache since the last call."""
    def path_memos(self) -> list[tuple[str, bytes]]:
        """Memos of the tables of its path literals, by path."""
    def plan_of_memo(
        self, memo: bytes, split_bytes: int, split_rows: int | None = None, explicit: bool = False
    ) -> Plan:
        """The plan whose splits another process found; `memo` is what `Plan.memo` gave there."""
    def quarantined(self) -> list[tuple[str, str]]:
        """Path and error of the files that its tables were registered without."""
    def plan(
        self,
        split_bytes: int,
        split_rows: int | None = None,
        explicit: bool = False,
        tolerant: bool = False,
    ) -> Plan:
        """Find the splits; `explicit` says whether the user chose the sizes.

        With `tolerant`, a file whose footer is damaged is a split that verification finds bad.
        """

@final
class Plan:
    """A query by splits."""

    @staticmethod
    def from_recipe(
        text: str, blobs: Sequence[bytes], foreign: Sequence[tuple[str, Any]] = ...
    ) -> Plan:
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
        """The load of each shard, and the imbalance over shards and over ranks."""
    def known_rows(self) -> int | None:
        """Rows of all splits before filters, where every split knows its own."""
    def recipe(
        self, ids: Sequence[int] | None = None
    ) -> tuple[str, list[bytes], list[tuple[str, Any]]]:
        """Recipe for another process to plan again: all splits, or these (ascending ids) and their files."""
    def memo(self, ids: Sequence[int] | None = None) -> bytes:
        """The splits for another process that has the same tables: all, or these (ascending ids)."""
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
        lends: bool = False,
        loose: bool = False,
        refills: bool = False,
        windows: Windows | None = None,
    ) -> BatchStream:
        """Start reading a shard from a cursor on; JSON options make tensors, None Arrow batches.

        With `lends`, a column may have memory of its own: its slot is a block of its own. With `loose`, the block of
        each batch is a `LooseBlock`. With `refills`, batches are full while there are rows. With `windows`, rows are these.
        """
    def stream_taken(
        self,
        shards: Shards,
        rank: int,
        worker: int,
        counter: Counter,
        iteration: int,
        threads: int,
        tensor_options: str | None,
        loose: bool = False,
        windows: Windows | None = None,
    ) -> BatchStream:
        """Start reading pieces that a worker takes from its rank, as long as the iteration is under way."""
    def positions(
        self,
        shards: Shards,
        rank: int,
        worker: int,
        cursor: Sequence[int],
        counts: Sequence[int],
        refills: bool = False,
    ) -> BatchStream:
        """The rows that a shard would deliver, as split and output row, without reading any; `refills` as for `stream`."""
    @property
    def bytes(self) -> int:
        """Stored bytes of all splits."""
    def row_bytes(self) -> int:
        """Guess the bytes that a decoded row takes."""
    def mixing(self, permutes: bool, window: int | None, partitions: int | None) -> _Mixing:
        """Choose the open splits of a shard, the rows of their turns, and the rows of a window."""
    def mixing_of_takers(
        self, mixing: _Mixing, takers: int, rows: int | None, batch_rows: int
    ) -> _Mixing:
        """Choose the same for workers that take splits as they come."""
    def scans(self) -> list[int]:
        """By split, the driving scan that it belongs to."""
    def files(self) -> list[tuple[str, str]]:
        """Name and identity of every file or table in memory that the query can read."""
    def verifier(self) -> SplitVerifier:
        """Make the verification of its splits."""
    def parts(self, id: int) -> list[tuple[str, int | None]]:
        """Each part of a split, in words, and its stored rows: row groups or stripes, or the split."""
    def without(self, bad: Mapping[int, Sequence[int]]) -> Plan:
        """Leave out some parts of its splits; a plan under a fingerprint of its own."""
    def options(self) -> tuple[int, int | None, bool]:
        """How splits were cut: bytes and rows that they grow towards, and whether the user chose one of these."""
    def shape(self) -> str:
        """DataFusion's plan before the splits were put in."""
    def row_range(self, id: int) -> tuple[int, int] | None:
        """Start and end of a split's rows in its file, where known."""
    def numbering(self, id: int) -> Literal["file", "table", "split"]:
        """From where physical rows of a split are counted."""
    def physical_rows(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
        """By split, the physical row behind each of these output rows; executes the splits."""
    def file_row_groups(self, id: int) -> list[tuple[int, int]]:
        """Start and end of each row group (or stripe, record batch, block) of a split's file, in physical rows."""
    def row_groups(self, id: int) -> tuple[int, int] | None:
        """First and one past the last row group, stripe, record batch or block of a split."""
    def explain(self) -> str:
        """The plan whose partitions are the splits, as an indented tree."""

@final
class SplitVerifier:
    """Executes the splits of a plan once, and says which cannot be read."""

    def verify(
        self,
        ids: Sequence[int],
        threads: int,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[tuple[int, list[tuple[str, int | None, int | None, str | None]]]]:
        """Output rows of each split; of a bad one also its parts: unit, stored rows, output rows, error.

        `progress` gets the splits and the good rows so far; what it raises ends the verification.
        """

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
    @staticmethod
    def forget_old(root: str | os.PathLike[str], keep: str, unused: float) -> int:
        """Delete the stages below `root` that nobody has used for `unused` seconds, but not `keep`; return how many.

        Whatever is no stage stays, and links are not followed.
        """
    @staticmethod
    def check_weight(plan: Plan, column: str) -> None:
        """Check that a plan has a numeric column of this name."""
    def weighed(self, column: str, replacement: bool, draws: int | None) -> Stage:
        """Return the same stage, from which epochs of `draws` rows are drawn by the weights in `column`."""
    @property
    def num_positions(self) -> int:
        """Positions of an epoch: rows drawn, or all rows."""
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
    def __arrow_c_schema__(self) -> object: ...
    def take(self, rows: Any, converter: TensorConverter) -> _TensorBatch:
        """Convert rows by number, in the order given; `rows` is a buffer of uint64."""
    def gather_pieces(
        self, column: str, rows: Any, from_: Any, to: Any, lengths: Any, target: Any, fill: Any
    ) -> bool:
        """Copy parts of a column's lists side by side into an array.

        Args:
            column: Its name.
            rows: A buffer of uint64: the row of each part.
            from_: A buffer of int64: the number that it begins with.
            to: A buffer of int64: the element of `target` that this number goes to; they rise.
            lengths: A buffer of int64: its numbers.
            target: A buffer of bytes.
            fill: Bytes: the number that goes to where no part is.

        Returns:
            False, with nothing done, where the column has other values than lists of numbers of so many bytes, or NULLs.
        """
    def remove(self) -> None:
        """Delete its files; whoever has it open keeps reading."""

@final
class Windows:
    """Windows over series of a plan's rows, each a row of the split in which it begins."""

    def __new__(
        cls, plan: Plan, spec: str, counts: Sequence[int], lengths: Sequence[int]
    ) -> Windows:
        """Lay out windows as `spec` (JSON) says, over splits of `counts` rows that are series of `lengths` rows."""
    @staticmethod
    def series(
        plan: Plan, by: Sequence[str], order: str, threads: int
    ) -> tuple[list[int], list[int], str | None]:
        """Read the columns of all rows once: the rows by split and by series; or the first row out of its place, in words."""
    def counts(self) -> list[int]:
        """Windows by split."""
    @property
    def window_bytes(self) -> int:
        """Bytes of a window, about."""
    def first_rows(self, windows: Sequence[tuple[int, int]]) -> list[int]:
        """The first row of each window (split, and number there), among all rows."""
    def places(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """The split of each of these rows, and its number there."""
    def __arrow_c_schema__(self) -> object: ...

@final
class RankShare:
    """The share of one rank in every epoch, for any number of workers."""

    @staticmethod
    def deal(
        plan: Plan,
        request: str,
        counts: Sequence[int] | None,
        sources: Sequence[int],
        left: bytes | None = None,
        rank: int | None = None,
    ) -> list[RankShare]:
        """Deal a plan's rows, or those `left`, to all ranks or to one; `request` is JSON, counts and sources are by split."""
    @staticmethod
    def decode(bytes: bytes) -> RankShare:
        """Read what `encode` wrote."""
    def encode(self) -> bytes:
        """As bytes, for another process."""
    @property
    def rank(self) -> int:
        """The rank."""
    @property
    def weight(self) -> float:
        """The weights of its pieces."""
    def split_ids(self) -> list[int]:
        """Ids of the splits that it reads, ascending."""
    def shards(self, plan: Plan, request: str) -> Shards:
        """The shards of the rank's workers in the epoch that `request` (JSON) says."""

@final
class Shards:
    """The shards of an epoch in reading order: of all ranks, or of one."""

    @staticmethod
    def deal(
        plan: Plan,
        request: str,
        counts: Sequence[int] | None,
        sources: Sequence[int],
        lists: Sequence[Sequence[int]] | None = None,
        left: bytes | None = None,
    ) -> Shards:
        """Deal a plan's rows to all shards, as `RankShare.deal` does; `lists` come from a custom strategy."""
    @staticmethod
    def left_after(
        plan: Plan,
        request: str,
        counts: Sequence[int] | None,
        sources: Sequence[int],
        run: str,
        lists: Sequence[Sequence[int]] | None = None,
        left: bytes | None = None,
    ) -> bytes:
        """What is left of an epoch after `run` (JSON); the others as they were when its shards were dealt."""
    @staticmethod
    def left_without(plan: Plan, request: str, counts: Sequence[int], depth: int) -> bytes:
        """The rows of an epoch without those that `request` excludes, as `left_after` packs them."""
    def size(self, rank: int, worker: int) -> tuple[int | None, int | None]:
        """Batches and rows of a shard, where they are counted."""
    def rows(self, rank: int, worker: int) -> int | None:
        """Rows of a shard without repeated ones, if they are counted."""
    def permuted(
        self, positions: Sequence[tuple[int, int]], len: int, stage: Stage | None = None
    ) -> list[int]:
        """The rows at these positions (run, and row of it) of a permutation of `len` rows, or of draws from `stage`."""
    def is_fixed(self, rank: int, worker: int) -> bool:
        """Whether the number of a shard's batches is known before it ends."""
    def cursor_of(self, run: str, rank: int, worker: int) -> list[int]:
        """How far a shard came in `run` (JSON), which had the same shards."""
    def cursor_at(self, rank: int, worker: int, batches: int) -> list[int]:
        """The cursor of a shard of counted rows after so many batches."""
    def cursor_after(self, rank: int, worker: int, batches: int, rows: int) -> list[int]:
        """The cursor of a shard of one lane after so many batches that consumed `rows` of its counted rows."""
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
        """Wait for the next batch; None at the end. It counts as handed out."""
    def next_group(self) -> list[_TensorBatch] | list[_Rows] | None:
        """Wait for the next batch, and return it with all batches finished with it; None at the end.

        Each counts as handed out with a call of `advance`.
        """
    def advance(self) -> bool:
        """Say that the next batch of the groups is handed out, and return whether it is the shard's last."""
    def upcoming(self, with_cursor: bool) -> tuple[int, bool, list[int] | None]:
        """Rows of the batch that `advance` hands out next, whether it is the last, and how far the shard is consumed with it."""
    @property
    def rows(self) -> int:
        """Rows of the batch handed out last."""
    def cursor(self) -> list[int]:
        """How far the shard is consumed with the batch handed out last."""
    def consumed(self) -> list[int]:
        """Pieces taken that were consumed between the batch before and the one handed out last."""
    def taken(self) -> list[int]:
        """All pieces that were taken so far."""
    @property
    def last(self) -> bool:
        """Whether the batch handed out last is the shard's last."""
    def cache_trouble(self) -> str | None:
        """The reason why the local cache was not used, once."""
    def close(self) -> None:
        """Stop the background work."""
    def counted(self) -> tuple[int, int]:
        """Rows handed out, and rows of finished batches that are ready."""
    def metrics(self) -> dict[str, float]:
        """Rows, batches and splits handed out; files; seconds waited, decoding and converting; bytes, requests, cache hits."""

@disjoint_base
class Delivery:
    """The base of iterators over batches. A batch counts as received in the moment in which it is returned.

    A subclass has `made`, which makes the next batch without counting it, and `failed`, which is told how `made` ended.
    """

    takes_turns: bool
    """Whether a second thread waits for its turn; else it gets an error."""

    def __new__(cls, *_arguments: Any, **_others: Any) -> Self: ...
    def begin_anew(self) -> None:
        """Forget how it ended, for an iterator that begins anew."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...

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
class LooseBlock:
    """The memory of one batch, in the parts in which it was decoded."""

    def __len__(self) -> int: ...
    def write_to(self, memory: Any, at: int) -> None:
        """Write all of it to writable memory, from byte `at` on; ValueError where it does not fit."""

@final
class Lease:
    """The first bytes of a segment of shared memory, as a writable buffer. Each tensor over it keeps it alive.

    With the last one the segment's byte in `states` becomes 0, its owner may fill it anew; or 2 where this process has
    forked meanwhile, since the child still sees what it saw.
    """

    def __new__(cls, memory: Any, len: int, states: Any, slot: int) -> Lease:
        """Lend the first `len` bytes of the writable buffer `memory`, whose state is the byte `slot` of `states`."""
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

def slice_rows(batch: _Rows, start: int, rows: int) -> _Rows:
    """`rows` rows of a batch from row `start` on, without a copy."""

def merge_batches(schema: _ArrowSchema, pieces: Sequence[_Rows]) -> _Rows:
    """Make one batch of the rows of all pieces."""

def copy_pieces(
    source: _Buffer, target: _Buffer, width: int, from_: _Buffer, to: _Buffer, lengths: _Buffer
) -> None:
    """Copy pieces of `source` into `target`, `width` bytes an element, from the elements `from_` on to the elements `to`."""

def mark_pieces(
    positions: _Buffer,
    documents: _Buffer,
    loss: _Buffer,
    begins: _Buffer,
    bounds: _Buffer,
    ends: _Buffer,
    lengths: _Buffer,
) -> tuple[int, int]:
    """Lay pieces side by side in packs; pack ``i`` has the pieces from number ``ends[i]`` on to ``ends[i + 1]``.

    Numbers the elements of each piece in `positions`, writes its number to `documents`, and 1 to `loss` for all but its first;
    elsewhere they are 0, -1 and 0. `begins` gets the place of each piece, and `bounds` those of the sequences, padding among
    them, with the end of the last one.

    Returns:
        How many bounds there are, and the elements of the longest sequence.
    """

def function_types(input_types: Sequence[Any], return_type: Any) -> tuple[bytes, list[str]]:
    """Types of arguments and of values as Arrow IPC, and as text; they are given by name or as Arrow types."""

def end_calls(patience: float) -> None:
    """Refuse calls of functions from now on, and wait so many seconds for those under way."""

def bounds() -> list[tuple[str, int, str]]:
    """List the bounds of decoding, in their order: name, number and unit."""

def lower_bound(name: str, most: int | None) -> None:
    """Lower a bound of decoding for this process, in tests; None gives its number back."""

def set_log_level(level: int) -> None:
    """Ask for what crates say from this level of ``logging`` on; `tensorquery._util.logs.hand_over` gets it."""

def quote_identifier(name: str) -> str:
    """Write `name` as an SQL identifier in double quotes."""

def stage_query(
    query: Query,
    stage: str,
    place: str,
    timeout: float,
    max_bytes: int | None = None,
    progress: Callable[[int, int, int, int, str | None], object] | None = None,
    engine: str | None = None,
) -> Query:
    """The query with its stages; builds stages that are not in `place` yet, here or by `engine`.

    Above `max_bytes`, stages of the place that nobody uses make way.

    `progress` is called with (stages begun, stages, rows, bytes, builder) now and then.
    """

def stages_of(query: Query) -> list[tuple[str, str | None, int, int, str, float | None]]:
    """The stages of a query: why, place, rows, bytes, digest, seconds that building took here."""

def list_stages(place: str, options: str) -> list[tuple[str, int | None, int, str, float]]:
    """The stages of a place: key, rows, bytes, why, seconds since 1970 of the last use."""

def clear_stages(
    place: str, options: str, unused: float, keep: int | None = None
) -> tuple[int, int, int]:
    """Remove stages: how many went, their bytes, and how many stayed because they are in use."""
