"""Tensors over memory that something else holds."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["tensor_over"]


def tensor_over(block: Any, dtype: Any, offset: int, count: int) -> Any:
    """A tensor of shape (count,) over a block, `offset` bytes from its start.

    It is no view of one tensor of the block: views share a version counter, so that an in-place operation on one column
    would break the backward pass of another.

    Args:
        block: A writable buffer; or a uint8 tensor, whose storage the result shares: torch knows pinned memory
            by it, and does not fill it anew while a copy to a device is under way.
        dtype: The torch dtype.
        offset: A multiple of the size of an element.
        count: Number of elements; the block may be anything where it is 0.
    """
    torch = sys.modules["torch"]
    if not count:
        return torch.empty(0, dtype=dtype)
    if isinstance(block, torch.Tensor):
        at = block.storage_offset() + offset
        return torch.empty(0, dtype=dtype).set_(
            block.untyped_storage(), at // dtype.itemsize, (count,), (1,)
        )
    return torch.frombuffer(block, dtype=dtype, count=count, offset=offset)
