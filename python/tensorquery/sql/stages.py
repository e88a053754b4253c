"""Stages of queries: rows that were computed once, in a folder or below a URL."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorquery import _core
from tensorquery._util.options import expanded_path, parse_bytes
from tensorquery.errors import ConfigError
from tensorquery.metrics.progress import TaskBar
from tensorquery.sql.row_store import stage_folder
from tensorquery.sql.storage import plain_options

__all__ = [
    "StagedRows",
    "StoredStage",
    "bound_of",
    "build_stages",
    "clear_stages",
    "list_stages",
    "place_of",
]

STAGE_MODES = ("auto", "never", "always")
DEFAULT_TIMEOUT = 3600.0

MAX_BYTES = "TENSORQUERY_STAGES_MAX_BYTES"
"""The variable that bounds the bytes of stages where no loader says a bound."""


@dataclass(frozen=True)
class StagedRows:
    """A stage that a loader reads.

    Attributes:
        why: Why these rows were staged.
        path: The folder or URL of its files.
        rows: Its rows.
        bytes: Bytes of its files.
        digest: SHA-256 of its content: part of the loader's fingerprint.
        seconds: Time to build it; None if it existed already, or if another process built it.
    """

    why: str
    path: str
    rows: int
    bytes: int
    digest: str
    seconds: float | None


@dataclass(frozen=True)
class StoredStage:
    """A stage in a folder or below a URL.

    Attributes:
        key: Its name: a digest of the query, the data it reads, and the version of tensorquery.
        rows: Its rows; None where it is not complete.
        bytes: Bytes of its files; of one that is being built, those written so far.
        why: Why these rows were staged.
        used: When it was opened last, in seconds since 1970.
    """

    key: str
    rows: int | None
    bytes: int
    why: str
    used: float


def default_stage_dir() -> str:
    """Where stages are kept unless `stage_dir` says so: ``$TENSORQUERY_STAGES``, else in the temporary directory.

    As in every such place, in a folder ``queries`` of ours.
    """
    return str(stage_folder())


def place_of(stage_dir: str | os.PathLike[str] | None) -> str:
    """The folder or URL that `stage_dir` means.

    Raises:
        ConfigError: It is neither.
    """
    if stage_dir is None:
        return default_stage_dir()
    if not isinstance(stage_dir, str | os.PathLike):
        raise ConfigError(f"stage_dir={stage_dir!r} must be a folder or a URL")
    return expanded_path(stage_dir)


def bound_of(max_bytes: int | str | None) -> int | None:
    """The bound that `stage_max_bytes` means: None is ``$TENSORQUERY_STAGES_MAX_BYTES``, and without that there is none.

    Raises:
        ConfigError: It is malformed.
    """
    if max_bytes is not None:
        return parse_bytes(max_bytes, "stage_max_bytes")
    everywhere = os.environ.get(MAX_BYTES)
    return parse_bytes(everywhere, MAX_BYTES) if everywhere else None


def build_stages(
    query: _core.Query,
    mode: str,
    place: str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    max_bytes: int | None = None,
    engine: str | None = None,
    show_progress: bool = False,
) -> _core.Query:
    """Make a query that reads this one's stages; build stages that do not exist yet.

    Args:
        query: The query.
        mode: One of `STAGE_MODES`; with "never" the query stays unchanged.
        place: The result of `place_of`.
        timeout: Seconds to wait for another process that builds.
        max_bytes: The result of `bound_of`.
        engine: The URL of a cluster that computes stages; None is this process.
        show_progress: Whether to show a bar.

    Raises:
        StorageError: The place cannot be written, or has no room, or another process builds for longer than the timeout.
        DataError: The staged rows cannot be computed.
    """
    if mode == "never":
        return query
    if max_bytes is not None:
        # Loaders that nobody holds any more may still hold stages that are to make way.
        gc.collect()
    bar = _Bar() if show_progress else None
    try:
        return _core.stage_query(
            query, mode, place, timeout, max_bytes, None if bar is None else bar.show, engine
        )
    finally:
        if bar is not None:
            bar.end()


def list_stages(
    stage_dir: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[StoredStage]:
    """List the stages of a folder or URL.

    Args:
        stage_dir: As for `create_dataloader`; None is the default folder.
        storage_options: Options of its object store (see `Session`).

    Returns:
        The stages, the one that was used last first; one that is being built has no rows yet.

    Raises:
        StorageError: The place cannot be listed.
    """
    options = json.dumps(plain_options(storage_options))
    return [StoredStage(*stage) for stage in _core.list_stages(place_of(stage_dir), options)]


def clear_stages(
    stage_dir: str | os.PathLike[str] | None = None,
    *,
    unused_days: float | None = None,
    keep_bytes: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Remove stages, except those in use by a process of this machine.

    Without this, stages that nobody has used for seven days go when another one is built in the same place, and those
    used longest ago where all are more than `stage_max_bytes` of `create_dataloader`.

    Args:
        stage_dir: As for `create_dataloader`; None is the default folder.
        unused_days: Remove stages that were not used for so many days; 0 removes all. None: 0, unless `keep_bytes` says what
            goes.
        keep_bytes: Also remove the least recently used, until no more bytes than this are left, as an int or a
            string such as "50GiB". None: no limit.
        storage_options: Options of its object store (see `Session`).

    Returns:
        The bytes that were freed.

    Raises:
        StorageError: The place cannot be listed, or a file cannot be removed.
        ConfigError: An option is malformed.
    """
    days = unused_days
    if days is None:
        days = 0.0 if keep_bytes is None else math.inf
    if isinstance(days, bool) or not isinstance(days, int | float) or not days >= 0:
        raise ConfigError(f"unused_days={unused_days!r} must be a number of at least 0")
    keep: int | None = None
    if keep_bytes is not None:
        is_zero = keep_bytes == 0 and not isinstance(keep_bytes, bool)
        keep = 0 if is_zero else parse_bytes(keep_bytes, "keep_bytes")
    # Loaders that nobody holds any more may still hold their stages.
    gc.collect()
    options = json.dumps(plain_options(storage_options))
    _, freed, _ = _core.clear_stages(place_of(stage_dir), options, days * 86400.0, keep)
    return freed


class _Bar:
    """A bar while stages are built, here or elsewhere."""

    def __init__(self) -> None:
        self._bar: TaskBar | None = None

    def show(self, begun: int, stages: int, rows: int, size: int, builder: str | None) -> None:
        """Say how far it is."""
        if not stages:
            return
        who = "building" if builder is None else f"waiting for {builder}, which builds"
        text = f"{who} stage {begun} of {stages}: {rows / 1e6:.1f} M rows, {size / 2**20:,.0f} MiB"
        self._bar = self._bar or TaskBar(text)
        self._bar.show(0, what=text)

    def end(self) -> None:
        """Leave it."""
        if self._bar is not None:
            self._bar.close()
