"""Memory that processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorquery._util.optional import has_torch

if TYPE_CHECKING:
    import torch

__all__ = ["SharedNumbers", "shared"]


def shared(size: int) -> torch.Tensor:
    """`size` bytes of shared memory."""
    import torch

    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class SharedNumbers:
    """Numbers of 8 bytes that a process shares with the workers that it starts, at first all 0.

    Without torch there are no workers, and the memory is this process's own.

    Args:
        count: How many numbers.
        dtype: "int64" or "float64".
    """

    def __init__(self, count: int, dtype: str) -> None:
        self._dtype = dtype
        # A tensor is what torch sends to a worker without copying it.
        self._memory: Any = shared(count * 8).zero_() if has_torch() else np.zeros(count * 8, "u1")

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The numbers, of shape (count,)."""
        memory = self._memory
        bytes_of_it = memory if isinstance(memory, np.ndarray) else memory.numpy()
        return bytes_of_it.view(self._dtype)

    @property
    def tensor(self) -> torch.Tensor:
        """The int64 numbers as a tensor, which workers have."""
        import torch

        found: torch.Tensor = self._memory.view(torch.int64)
        return found
