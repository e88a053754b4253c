"""Digests of plain data."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["digest"]


def digest(value: Any) -> str:
    """A short digest of plain data, the same in every process.

    >>> digest({"b": 1, "a": [2]}) == digest({"a": [2], "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
