"""Tables in memory: anything that `Session.register_table` takes, as an object that speaks the Arrow PyCapsule interface."""

from __future__ import annotations

import sys
from typing import Any

from tensorquery.errors import ConfigError

__all__ = ["speaks_arrow", "tabular"]


def speaks_arrow(data: Any) -> bool:
    """Whether `data` has the Arrow PyCapsule interface."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def tabular(data: Any) -> Any:
    """The rows of `data`, which is no `Query`.

    Args:
        data: An Arrow table of any library, or a `datasets.Dataset`, which has Arrow tables inside.

    Returns:
        An object with ``__arrow_c_stream__`` or ``__arrow_c_array__``.

    Raises:
        ConfigError: It is neither; names its type and what to do.
    """
    if speaks_arrow(data):
        return data
    # Whoever has such an object has imported its library.
    datasets = sys.modules.get("datasets")
    if datasets is not None:
        if isinstance(data, datasets.Dataset):
            # Not `data.data`, which ignores the selection and its order.
            return data.with_format("arrow")[:]
        if isinstance(data, datasets.DatasetDict):
            raise ConfigError(
                f"register_table got a DatasetDict of the splits {sorted(data)}; register one of them, for example "
                f"data[{sorted(data)[0]!r}]"
                if data
                else "register_table got an empty DatasetDict"
            )
        if isinstance(data, datasets.IterableDataset):
            raise ConfigError(
                "register_table got an IterableDataset, which has no table; read its files by path=, or load it with "
                "streaming=False"
            )
    raise ConfigError(
        f"register_table needs an Arrow table (an object with __arrow_c_stream__), got "
        f"{type(data).__name__}; convert it, for example pyarrow.table({{...}})"
    )
