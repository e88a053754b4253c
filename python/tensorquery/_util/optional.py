"""Imports of torch when it is first used, so that exploring data needs no torch."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needing_torch"]


def needing_torch(module: str, name: str) -> Any:
    """A public object of a module that imports torch.

    Args:
        module: The module.
        name: The object's name there and in the package.

    Raises:
        ImportError: PyTorch is not installed; says how to install it.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "torch":
            raise ImportError(f"tensorquery.{name} needs PyTorch: pip install torch") from error
        raise
