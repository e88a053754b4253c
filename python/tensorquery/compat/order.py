"""From the options of torch-dataloader-utils that cut, deal and permute files to those of `QueryDataset`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorquery._util.callers import stack_level_outside
from tensorquery.compat.dealing import FileStrategy
from tensorquery.compat.splits import DataFileInfo
from tensorquery.compat.strategies import TargetSizeSplitStrategy
from tensorquery.sharding.shards import DEFAULT_SPLIT_BYTES

__all__ = ["order_options"]


def order_options(
    strategy: Any | None,
    files: Callable[[], tuple[Sequence[DataFileInfo], dict[str, str]]],
    num_ranks: int,
    *,
    shuffle: bool,
    shuffle_seed: int,
    shuffle_buffer_size: int | None,
    split_bytes: int | str | None,
    split_rows: int | None,
) -> dict[str, Any]:
    """How files are cut, dealt and permuted, as options of `QueryDataset`.

    Args:
        strategy: The user's `split_strategy`.
        files: The files that it is to deal, and their paths in the plan by their own; asked where there is one.
        num_ranks: Number of ranks.
        shuffle: The user's.
        shuffle_seed: The user's.
        shuffle_buffer_size: Rows that are mixed, or None.
        split_bytes: The user's.
        split_rows: The user's.

    Returns:
        The options.

    Raises:
        ConfigError: The strategy has no method `generate`.
    """
    if strategy is not None:
        _warn_of_unread(strategy, shuffle, split_bytes, split_rows)
        if not _is_target_size(strategy):
            given, paths = files()
            # Row groups by themselves, so that any range that ends with one can be dealt. Ranks need equal steps, for which
            # rows move between shards; the workers of one rank read the parts dealt to them.
            return {
                "split_strategy": FileStrategy(strategy, given, paths, num_ranks),
                "split_rows": 1,
                "shuffle_seed": shuffle_seed,
                "shuffle_buffer_size": shuffle_buffer_size,
                "remainder": "uneven" if num_ranks == 1 else "even",
            }
        split_bytes, split_rows = strategy.target_bytes, strategy.target_rows
        shuffle = strategy.shuffle
        if shuffle:
            shuffle_seed = strategy.seed
    if shuffle is True and shuffle_buffer_size is None:
        # A window of one row: parts of files are permuted, and the rows within keep their order.
        shuffle_buffer_size = 1
    return {
        "shuffle": shuffle,
        "shuffle_seed": shuffle_seed,
        "shuffle_buffer_size": shuffle_buffer_size,
        "split_bytes": DEFAULT_SPLIT_BYTES if split_bytes is None else split_bytes,
        "split_rows": split_rows,
    }


def _is_target_size(strategy: Any) -> bool:
    """Whether a strategy cuts and deals as the dataset does by itself."""
    generate = getattr(type(strategy), "generate", None)
    return generate is TargetSizeSplitStrategy.generate


def _warn_of_unread(
    strategy: Any, shuffle: bool, split_bytes: int | str | None, split_rows: int | None
) -> None:
    """A strategy decides alone; say so where options say something else."""
    unread = [
        name
        for name, value in (("split_bytes", split_bytes), ("split_rows", split_rows))
        if value is not None
    ]
    if shuffle and not getattr(strategy, "shuffle", False):
        unread.append("shuffle")
    if unread:
        name = type(strategy).__name__
        warnings.warn(
            f"{' and '.join(unread)} {'has' if len(unread) == 1 else 'have'} no effect beside split_strategy={name}(…), which "
            "cuts, deals and permutes by itself; give them to the strategy, or leave it out",
            UserWarning,
            stacklevel=stack_level_outside(),
        )
