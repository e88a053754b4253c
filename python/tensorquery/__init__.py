"""A query-to-tensor loader: SQL over Parquet, ORC, CSV, JSON and Arrow files becomes a PyTorch DataLoader."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from tensorquery._core import __version__
from tensorquery._util.optional import needing_torch
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
from tensorquery.loading.keyed import KeyedJagged
from tensorquery.loading.query_rows import QueryRows
from tensorquery.loading.tensors import Encoded, Jagged, to_tensors
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

if TYPE_CHECKING:
    from tensorquery.integrations.nodes import QueryNode as QueryNode
    from tensorquery.integrations.trainer import QueryTrainerMixin
    from tensorquery.loading.alteration import Alteration, SourceRows
    from tensorquery.loading.bisect import Culprits, bisect
    from tensorquery.loading.create import create_dataloader
    from tensorquery.loading.dataloader import QueryDataLoader
    from tensorquery.loading.dataset import QueryDataset
    from tensorquery.loading.packed import Packing
    from tensorquery.loading.seen import Seen, SeenRow, TouchedCheckpoint, seen
    from tensorquery.loading.verify import EpochVerification, Verification, verify
    from tensorquery.loading.windowed import Windowing
    from tensorquery.metrics.loader_metrics import Metrics

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
    "Quarantined",
    "Query",
    "QueryDataLoader",
    "QueryDataset",
    "QueryError",
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

_NEEDS_TORCH = {
    "Alteration": "tensorquery.loading.alteration",
    "SourceRows": "tensorquery.loading.alteration",
    "QueryDataset": "tensorquery.loading.dataset",
    "QueryDataLoader": "tensorquery.loading.dataloader",
    "Packing": "tensorquery.loading.packed",
    "QueryTrainerMixin": "tensorquery.integrations.trainer",
    "Metrics": "tensorquery.metrics.loader_metrics",
    "create_dataloader": "tensorquery.loading.create",
    "EpochVerification": "tensorquery.loading.verify",
    "Culprits": "tensorquery.loading.bisect",
    "bisect": "tensorquery.loading.bisect",
    "Seen": "tensorquery.loading.seen",
    "SeenRow": "tensorquery.loading.seen",
    "TouchedCheckpoint": "tensorquery.loading.seen",
    "seen": "tensorquery.loading.seen",
    "Verification": "tensorquery.loading.verify",
    "verify": "tensorquery.loading.verify",
    "Windowing": "tensorquery.loading.windowed",
}
# Not in `__all__`, so that `from tensorquery import *` asks for no package that few have.
_NEEDS_TORCHDATA = {"QueryNode": "tensorquery.integrations.nodes"}


def __getattr__(name: str) -> Any:
    """Import modules that need torch at first use, so that exploring data needs no torch."""
    module = _NEEDS_TORCH.get(name) or _NEEDS_TORCHDATA.get(name)
    if module is None:
        raise AttributeError(f"module 'tensorquery' has no attribute {name!r}")
    return needing_torch(module, name)


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
