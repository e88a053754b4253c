"""Memory that processes share."""

from __future__ import annotations

import torch

__all__ = [
    "shared",
]


def shared(size: int) -> torch.Tensor:
    """`size` bytes of shared memory."""
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage)
