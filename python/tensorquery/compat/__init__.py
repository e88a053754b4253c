"""The interface of torch-dataloader-utils 0.2 over tensorquery: change the import, and the rest of a program stays.

    from tensorquery.compat import StructuredDataset, IcebergDataset

docs/migration.md maps every parameter, and says where rows are read that were lost before.
"""

from __future__ import annotations

from tensorquery.compat.discovery import MissingFilesError, discover_files
from tensorquery.compat.iceberg import IcebergDataset
from tensorquery.compat.metrics import EpochSummary, WorkerMetrics
from tensorquery.compat.splits import (
    DataFileInfo,
    FileSplit,
    IcebergDataFileInfo,
    RowRange,
    Shard,
    Split,
    SplitStrategy,
)
from tensorquery.compat.strategies import (
    RoundRobinSplitStrategy,
    SizeBalancedSplitStrategy,
    TargetSizeSplitStrategy,
)
from tensorquery.compat.structured import StructuredDataset
from tensorquery.errors import CheckpointMismatchError

__all__ = [
    "CheckpointMismatchError",
    "DataFileInfo",
    "EpochSummary",
    "FileSplit",
    "IcebergDataFileInfo",
    "IcebergDataset",
    "MissingFilesError",
    "RoundRobinSplitStrategy",
    "RowRange",
    "Shard",
    "SizeBalancedSplitStrategy",
    "Split",
    "SplitStrategy",
    "StructuredDataset",
    "TargetSizeSplitStrategy",
    "WorkerMetrics",
    "discover_files",
]
