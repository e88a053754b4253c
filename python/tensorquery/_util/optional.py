"""PyTorch where it is installed: whether it is, what it says of this process, and what needs it.

`DataLoader`, worker processes and tensors need it. All else, NumPy and JAX loops among it, runs without.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

__all__ = ["has_torch", "needing_torch", "worker_info"]


def has_torch() -> bool:
    """Whether PyTorch is installed; it is not imported for that."""
    if sys.modules.get("torch") is not None:
        return True
    try:
        return importlib.util.find_spec("torch") is not None
    except ImportError:
        # A finder of the program's may refuse it.
        return False


def worker_info() -> Any | None:
    """What ``torch.utils.data.get_worker_info()`` says; None outside of a worker, where torch is always loaded."""
    data = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


def needing_torch(module: str, name: str, what: str | None = None) -> Any:
    """An object of a module that imports torch.

    Args:
        module: The module.
        name: The object's name there.
        what: What needs it, for the error; None: the public name in the package.

    Raises:
        ImportError: PyTorch is not installed; says how to install it.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torch":
            raise ImportError(
                f"{what or f'tensorquery.{name}'} needs PyTorch: pip install torch", name="torch"
            ) from error
        raise
