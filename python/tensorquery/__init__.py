"""A query-to-tensor loader: SQL over Parquet, ORC, CSV, JSON and Arrow files becomes a PyTorch DataLoader."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from tensorquery._core import __version__
from tensorquery.asof import asof_join
from tensorquery.checkpoint import merge_state_dicts
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
from tensorquery.iceberg import SnapshotChange
from tensorquery.mixture import Mixture, mix
from tensorquery.quarantine import Quarantined
from tensorquery.query import Query
from tensorquery.samples import LoaderStatistics
from tensorquery.session import Session, TableInfo
from tensorquery.shards import RowRange, Shard, ShardPlan, Split, SplitStrategy
from tensorquery.staging import StagedRows, StoredStage, clear_stages, list_stages
from tensorquery.tensors import Encoded, Jagged, to_tensors
from tensorquery.trace import Trace, TraceRange

if TYPE_CHECKING:
    from tensorquery.dataloader import QueryDataLoader
    from tensorquery.dataset import QueryDataset
    from tensorquery.loader import create_dataloader
    from tensorquery.metrics import Metrics
    from tensorquery.nodes import QueryNode as QueryNode
    from tensorquery.trainer import QueryTrainerMixin

__all__ = [
    "CheckpointMismatchError",
    "ConfigError",
    "DataError",
    "Encoded",
    "Jagged",
    "LoaderStatistics",
    "Metrics",
    "Mixture",
    "NotShardableError",
    "Quarantined",
    "Query",
    "QueryDataLoader",
    "QueryDataset",
    "QueryError",
    "QueryTrainerMixin",
    "RowRange",
    "Session",
    "Shard",
    "ShardPlan",
    "SnapshotChange",
    "Split",
    "SplitStrategy",
    "StagedRows",
    "StorageError",
    "StoredStage",
    "TableInfo",
    "TableNotFoundError",
    "TensorQueryError",
    "Trace",
    "TraceRange",
    "UnsupportedTypeError",
    "__version__",
    "asof_join",
    "clear_stages",
    "create_dataloader",
    "list_stages",
    "merge_state_dicts",
    "mix",
    "to_tensors",
]

_NEEDS_TORCH = {
    "QueryDataset": "tensorquery.dataset",
    "QueryDataLoader": "tensorquery.dataloader",
    "QueryTrainerMixin": "tensorquery.trainer",
    "Metrics": "tensorquery.metrics",
    "create_dataloader": "tensorquery.loader",
}
# Not in `__all__`, so that `from tensorquery import *` asks for no package that few have.
_NEEDS_TORCHDATA = {"QueryNode": "tensorquery.nodes"}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first used, so that exploring data needs no torch."""
    module = _NEEDS_TORCH.get(name) or _NEEDS_TORCHDATA.get(name)
    if module is None:
        raise AttributeError(f"module 'tensorquery' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ImportError(f"tensorquery.{name} needs PyTorch: pip install torch") from error
        raise


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext tensorquery`` calls: adds the magic ``%%tq`` and the completion of names.

    Args:
        shell: The shell of IPython.
    """
    importlib.import_module("tensorquery.magic").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext tensorquery`` calls.

    Args:
        shell: The shell of IPython.
    """
    importlib.import_module("tensorquery.magic").unload(shell)


def __dir__() -> list[str]:
    # Tools read every name that is listed.
    return sorted([*__all__, *(_NEEDS_TORCHDATA if importlib.util.find_spec("torchdata") else ())])


if sys.modules.get("torch") is not None:
    # Who has imported torch is about to train: these milliseconds belong here, and not before the first batch.
    importlib.import_module("tensorquery.loader")
