"""Whether two loaders delivered the same rows: the sum of each column, in whatever order they came."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TOLERANCE = 1e-9
"""Relative; sums of float64 in another order differ by less, and a lost or repeated row makes more."""


def add(sums: dict[str, float], batch: Mapping[str, Any]) -> None:
    """Add a batch; integers are exact, all of them lie far below 2^53."""
    import torch

    for name, column in batch.items():
        if not isinstance(column, torch.Tensor):
            continue
        exact = torch.float64 if column.is_floating_point() else torch.int64
        sums[name] = sums.get(name, 0.0) + column.sum(dtype=exact).item()


def differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    """The columns whose sums are not the same."""
    if ours.keys() != theirs.keys():
        return [f"columns {sorted(ours)} and {sorted(theirs)}"]
    return [
        f"{name}: {ours[name]!r} and {theirs[name]!r}"
        for name in ours
        if not math.isclose(ours[name], theirs[name], rel_tol=TOLERANCE, abs_tol=1e-6)
    ]
