"""Where staged rows lie: a query's rows on local disk, for access at random."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

from tensorquery import _core
from tensorquery._util.options import expanded_path
from tensorquery.metrics.progress import TaskBar

__all__ = ["open_stage", "stage_folder"]

_log = logging.getLogger(__name__)

_KEPT_SECONDS = 3 * 24 * 3600

_ROOM = "rows"
"""The folder of stages of rows for access at random, beside that of stages of queries (see `stages`). It is ours: in the
folder that the user names, anything else may lie."""


def stage_folder() -> Path:
    """Where stages are kept: ``$TENSORQUERY_STAGES``, else a folder of this user's in the temporary directory.

    The processes of one machine share a stage, and a resumed run finds it again. It needs room for the rows of the
    query, uncompressed.
    """
    if own := os.environ.get("TENSORQUERY_STAGES"):
        return Path(expanded_path(own))
    # Under this name it must be this user's alone, which is checked where it is used.
    return Path(tempfile.gettempdir()) / f"tensorquery-{os.getuid()}"


def open_stage(plan: _core.Plan, *, threads: int, show_progress: bool) -> _core.Stage:
    """Open the stage of a plan's rows, or write it; of several processes on a machine one does.

    Args:
        plan: The plan, with all its splits.
        threads: Splits that are written at the same time.
        show_progress: Show a bar while rows are written.

    Raises:
        StorageError: There is no room, or no permission to write, or the folder is not this user's; names it.
        DataError: A file of the query cannot be read.
    """
    root = stage_folder() / _ROOM
    # Whoever still reads an old stage keeps its files.
    removed = _core.Stage.forget_old(root, plan.fingerprint, _KEPT_SECONDS)
    if removed:
        _log.info("%d stages in %s that nobody used for three days were removed", removed, root)

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
