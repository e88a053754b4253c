"""No loader: torch and nothing else, for the memory that every process with torch has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compare.request import Request


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    """No batches."""
    return iter(())
