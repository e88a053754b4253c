"""Makes a folder of files once: an interrupted one is made again, a complete one is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

DATA = Path(".bench")
"""Where the files are; git ignores it."""


def once(target: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill the folder `target`, unless it has; the folder appears with its last file in it."""
    if target.exists():
        return target
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    partial.rename(target)
    return target
