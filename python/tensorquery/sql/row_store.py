"""Where staged rows lie: a query's rows on local disk, for access at random."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from tensorquery import _core
from tensorquery._util.options import expanded_path
from tensorquery.errors import StorageError
from tensorquery.metrics.progress import TaskBar

__all__ = ["QUERY_STAGES", "open_stage", "stage_folder"]

_KEPT_SECONDS = 3 * 24 * 3600

QUERY_STAGES = "queries"
"""The folder of stages of queries, among those of rows for access at random. It has rules of its own: see `stages`."""


def stage_folder() -> Path:
    """Where stages are kept: ``$TENSORQUERY_STAGES``, else a folder of this user's in the temporary directory.

    The processes of one machine share a stage, and a resumed run finds it again. It needs room for the rows of the
    query, uncompressed.
    """
    if own := os.environ.get("TENSORQUERY_STAGES"):
        return Path(expanded_path(own))
    return Path(tempfile.gettempdir()) / f"tensorquery-{os.getuid()}"


def open_stage(plan: _core.Plan, *, threads: int, show_progress: bool) -> _core.Stage:
    """Open the stage of a plan's rows, or write it; of several processes on a machine one does.

    Args:
        plan: The plan, with all its splits.
        threads: Splits that are written at the same time.
        show_progress: Show a bar while rows are written.

    Raises:
        StorageError: There is no room, or no permission to write; names the folder.
        DataError: A file of the query cannot be read.
    """
    root = stage_folder()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"rows cannot be staged in {root}: {error}; set TENSORQUERY_STAGES to a folder with room for them"
        ) from error
    _forget_old(root, plan.fingerprint)

    bar: TaskBar | None = None

    def report(done: int, splits: int, rows: int, size: int) -> None:
        nonlocal bar
        if splits:
            bar = bar or TaskBar("staging rows", splits)
            bar.show(done, f"{rows / 1e6:.1f} M rows, {size / 2**20:,.0f} MiB")

    try:
        stage = _core.Stage.ensure(plan, root, threads, report if show_progress else None)
    finally:
        if bar is not None:
            bar.close()
    # Its age counts from its last use.
    with contextlib.suppress(OSError):
        os.utime(stage.path)
    return stage


def _forget_old(root: Path, keep: str) -> None:
    """Delete stages that nobody has opened for three days; who still reads one keeps its files."""
    for folder in root.iterdir():
        if folder.name in (keep, QUERY_STAGES) or not folder.is_dir():
            continue
        # Another process may delete it at the same time.
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(folder)
