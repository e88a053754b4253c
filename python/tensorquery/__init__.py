"""A query-to-tensor loader: SQL over Parquet, ORC, CSV, JSON and Arrow files becomes batches of PyTorch, NumPy or JAX."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from tensorquery._core import __version__
from tensorquery._util.optional import has_torch, needing_torch
from tensorquery.errors import (
    CheckpointMismatchError,
    ConfigError,
    DataError,
    NotShardableError,
    QueryError,
    StorageError,
    TableNotFoundError,
    TensorQueryError,
    UnsupportedTypeError,
)

if TYPE_CHECKING:
    from tensorquery.distributed.process_group import ProcessGroup
    from tensorquery.integrations.nodes import QueryNode as QueryNode
    from tensorquery.integrations.trainer import QueryTrainerMixin
    from tensorquery.loading.alteration import Alteration, SourceRows
    from tensorquery.loading.bisect import Culprits, bisect
    from tensorquery.loading.create import create_dataloader
    from tensorquery.loading.dataloader import QueryDataLoader
    from tensorquery.loading.dataset import QueryDataset
    from tensorquery.loading.keyed import KeyedJagged
    from tensorquery.loading.loader import QueryLoader
    from tensorquery.loading.packed import Packing
    from tensorquery.loading.query_rows import QueryRows
    from tensorquery.loading.seen import Seen, SeenRow, TouchedCheckpoint, seen
    from tensorquery.loading.tensors import Encoded, Jagged, to_tensors
    from tensorquery.loading.verify import EpochVerification, Verification, verify
    from tensorquery.loading.windowed import Windowing
    from tensorquery.metrics.loader_metrics import Metrics
    from tensorquery.metrics.time_series import LoaderStatistics
    from tensorquery.sharding.bad_files import Quarantined
    from tensorquery.sharding.checkpoint import merge_state_dicts
    from tensorquery.sharding.failed_rows import FailedRow
    from tensorquery.sharding.packing import Pack
    from tensorquery.sharding.shard_plan import Shard, ShardPlan
    from tensorquery.sharding.shards import RowRange, Split, SplitStrategy
    from tensorquery.sharding.trace import Trace, TraceRange
    from tensorquery.sharding.windows import Windows
    from tensorquery.sql.asof import asof_join
    from tensorquery.sql.iceberg import SnapshotChange
    from tensorquery.sql.mixture import Mixture, mix
    from tensorquery.sql.quantiles import quantile_boundaries
    from tensorquery.sql.query import Query
    from tensorquery.sql.registry import TableInfo
    from tensorquery.sql.schedule import Schedule
    from tensorquery.sql.session import Session
    from tensorquery.sql.stages import StagedRows, StoredStage, clear_stages, list_stages

__all__ = [
    "Alteration",
    "CheckpointMismatchError",
    "ConfigError",
    "Culprits",
    "DataError",
    "Encoded",
    "EpochVerification",
    "FailedRow",
    "Jagged",
    "KeyedJagged",
    "LoaderStatistics",
    "Metrics",
    "Mixture",
    "NotShardableError",
    "Pack",
    "Packing",
    "ProcessGroup",
    "Quarantined",
    "Query",
    "QueryDataLoader",
    "QueryDataset",
    "QueryError",
    "QueryLoader",
    "QueryRows",
    "QueryTrainerMixin",
    "RowRange",
    "Schedule",
    "Seen",
    "SeenRow",
    "Session",
    "Shard",
    "ShardPlan",
    "SnapshotChange",
    "SourceRows",
    "Split",
    "SplitStrategy",
    "StagedRows",
    "StorageError",
    "StoredStage",
    "TableInfo",
    "TableNotFoundError",
    "TensorQueryError",
    "TouchedCheckpoint",
    "Trace",
    "TraceRange",
    "UnsupportedTypeError",
    "Verification",
    "Windowing",
    "Windows",
    "__version__",
    "asof_join",
    "bisect",
    "clear_stages",
    "create_dataloader",
    "list_stages",
    "merge_state_dicts",
    "mix",
    "quantile_boundaries",
    "seen",
    "to_tensors",
    "verify",
]

_AT_FIRST_USE = {
    "Alteration": "tensorquery.loading.alteration",
    "Culprits": "tensorquery.loading.bisect",
    "Encoded": "tensorquery.loading.tensors",
    "EpochVerification": "tensorquery.loading.verify",
    "FailedRow": "tensorquery.sharding.failed_rows",
    "Jagged": "tensorquery.loading.tensors",
    "KeyedJagged": "tensorquery.loading.keyed",
    "LoaderStatistics": "tensorquery.metrics.time_series",
    "Metrics": "tensorquery.metrics.loader_metrics",
    "Mixture": "tensorquery.sql.mixture",
    "Pack": "tensorquery.sharding.packing",
    "Packing": "tensorquery.loading.packed",
    "ProcessGroup": "tensorquery.distributed.process_group",
    "Quarantined": "tensorquery.sharding.bad_files",
    "Query": "tensorquery.sql.query",
    "QueryDataset": "tensorquery.loading.dataset",
    "QueryLoader": "tensorquery.loading.loader",
    "QueryRows": "tensorquery.loading.query_rows",
    "RowRange": "tensorquery.sharding.shards",
    "Schedule": "tensorquery.sql.schedule",
    "Seen": "tensorquery.loading.seen",
    "SeenRow": "tensorquery.loading.seen",
    "Session": "tensorquery.sql.session",
    "Shard": "tensorquery.sharding.shard_plan",
    "ShardPlan": "tensorquery.sharding.shard_plan",
    "SnapshotChange": "tensorquery.sql.iceberg",
    "SourceRows": "tensorquery.loading.alteration",
    "Split": "tensorquery.sharding.shards",
    "SplitStrategy": "tensorquery.sharding.shards",
    "StagedRows": "tensorquery.sql.stages",
    "StoredStage": "tensorquery.sql.stages",
    "TableInfo": "tensorquery.sql.registry",
    "TouchedCheckpoint": "tensorquery.loading.seen",
    "Trace": "tensorquery.sharding.trace",
    "TraceRange": "tensorquery.sharding.trace",
    "Verification": "tensorquery.loading.verify",
    "Windowing": "tensorquery.loading.windowed",
    "Windows": "tensorquery.sharding.windows",
    "asof_join": "tensorquery.sql.asof",
    "bisect": "tensorquery.loading.bisect",
    "clear_stages": "tensorquery.sql.stages",
    "create_dataloader": "tensorquery.loading.create",
    "list_stages": "tensorquery.sql.stages",
    "merge_state_dicts": "tensorquery.sharding.checkpoint",
    "mix": "tensorquery.sql.mixture",
    "quantile_boundaries": "tensorquery.sql.quantiles",
    "seen": "tensorquery.loading.seen",
    "to_tensors": "tensorquery.loading.tensors",
    "verify": "tensorquery.loading.verify",
}
_NEEDS_TORCH = {
    "QueryDataLoader": "tensorquery.loading.dataloader",
    "QueryTrainerMixin": "tensorquery.integrations.trainer",
}
# Not in `__all__`, so that `from tensorquery import *` asks for no package that few have.
_NEEDS_TORCHDATA = {"QueryNode": "tensorquery.integrations.nodes"}
if not has_torch():
    for _name in _NEEDS_TORCH:
        __all__.remove(_name)


def __getattr__(name: str) -> Any:
    """Import a module at first use: what asks for the version or for rows needs no loader, no NumPy and no torch."""
    module = (_AT_FIRST_USE | _NEEDS_TORCH | _NEEDS_TORCHDATA).get(name)
    if module is None:
        raise AttributeError(f"module 'tensorquery' has no attribute {name!r}")
    found = globals()[name] = needing_torch(module, name)
    return found


def load_ipython_extension(shell: Any) -> None:
    """Add the magic ``%%tq`` and the completion of names; ``%load_ext tensorquery`` calls this.

    Args:
        shell: The shell of IPython.
    """
    importlib.import_module("tensorquery.integrations.magic").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magic and the completion; ``%unload_ext tensorquery`` calls this.

    Args:
        shell: The shell of IPython.
    """
    importlib.import_module("tensorquery.integrations.magic").unload(shell)


def __dir__() -> list[str]:
    # Tools read every name that is listed.
    return sorted([*__all__, *(_NEEDS_TORCHDATA if importlib.util.find_spec("torchdata") else ())])


if sys.modules.get("torch") is not None:
    # Who has imported torch is about to train: these milliseconds belong here, and not before the first batch.
    importlib.import_module("tensorquery.loading.create")
