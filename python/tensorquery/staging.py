"""Stages of queries: what cannot run split by split is computed once, kept, and read split by split."""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tensorquery import _core
from tensorquery.errors import ConfigError, QueryError
from tensorquery.options import check_choice, expanded_path, nearest_name, parse_bytes
from tensorquery.progress import TaskBar
from tensorquery.query import Query
from tensorquery.stages import QUERY_STAGES, stage_folder
from tensorquery.storage import plain_options

if TYPE_CHECKING:
    from tensorquery.mixture import Mixture

__all__ = ["StagedRows", "Staging", "StoredStage", "clear_stages", "list_stages"]

STAGE_MODES = ("auto", "never", "always")
DEFAULT_TIMEOUT = 3600.0

MAX_BYTES = "TENSORQUERY_STAGES_MAX_BYTES"
"""The variable that bounds the bytes of stages where no loader says a bound."""

Staged = TypeVar("Staged", "Query", "Mixture", "Query | Mixture")


@dataclass(frozen=True)
class StagedRows:
    """A stage that a loader reads.

    Attributes:
        why: Why these rows were staged.
        path: The folder or URL of its files.
        rows: Its rows.
        bytes: Bytes of its files.
        digest: SHA-256 of its content: part of the loader's fingerprint.
        seconds: What building it took, where this process did; None where it was there, or another process built it.
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
        key: Its name: a digest of the query, of what it reads, and of the version of tensorquery.
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


@dataclass(frozen=True)
class Staging:
    """How a loader stages its query.

    Attributes:
        mode: "auto", "never" or "always".
        place: A folder or URL; None is a folder of this user's on this machine.
        timeout: Seconds to wait for another process that builds.
        max_bytes: Bytes of all stages of the place above which those that nobody uses go; None is no bound.
        source: Rows that somebody else computed: a path, or a query over them.
        engine: The URL of a cluster that computes stages; None is this process.
        show_progress: Whether to show a bar.
    """

    mode: str = "auto"
    place: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    source: str | Query | None = None
    engine: str | None = None
    show_progress: bool = False
    max_bytes: int | None = None

    @classmethod
    def of(
        cls,
        mode: str,
        place: str | os.PathLike[str] | None,
        timeout: float | None,
        source: str | os.PathLike[str] | Query | None,
        engine: str | None,
        show_progress: bool,
        max_bytes: int | str | None = None,
    ) -> Staging:
        """Check options as a user gave them.

        Raises:
            ConfigError: One of them is malformed, or two contradict each other.
        """
        check_choice("stage", mode, STAGE_MODES)
        own = None if place is None else place_of(place)
        seconds = DEFAULT_TIMEOUT if timeout is None else timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise ConfigError(f"stage_timeout={timeout!r} must be a number of seconds above 0")
        if source is not None and not isinstance(source, str | os.PathLike | Query):
            raise ConfigError(
                f"stage_from={source!r} must be a path, a URL, or a Query over the rows (session.sql(…), "
                "session.table(…))"
            )
        if source is not None and (place is not None or mode == "always"):
            raise ConfigError(
                "stage_from= says that the rows are there already; stage_dir= and stage= do not go with it"
            )
        if source is not None and max_bytes is not None:
            raise ConfigError(
                "stage_from= says that the rows are there already; stage_max_bytes= does not go with it"
            )
        if engine is not None:
            _check_engine(engine, mode, place, source)
        if isinstance(source, str | os.PathLike):
            source = expanded_path(source)
        bound = bound_of(max_bytes)
        return cls(mode, own, float(seconds), source, engine, show_progress, bound)

    def apply(self, query: Staged) -> Staged:
        """Make the query over what is staged of this one; build stages that are not there yet.

        Raises:
            StorageError: The place cannot be written, or has no room, or another process builds for longer than the timeout.
            DataError: The staged rows cannot be computed.
        """
        if self.source is not None:
            return self._given(query)
        if self.mode == "never":
            return query
        if self.max_bytes is not None:
            # Loaders that nobody holds any more may still hold stages that are to make way.
            gc.collect()
        bar = _Bar() if self.show_progress else None
        try:
            core = _core.stage_query(
                query._core,
                self.mode,
                place_of(self.place),
                self.timeout,
                self.max_bytes,
                None if bar is None else bar.show,
                self.engine,
            )
        finally:
            if bar is not None:
                bar.end()
        return query._over(core)

    def _given(self, query: Staged) -> Staged:
        """The rows that somebody else computed, with the columns of the query."""
        if not isinstance(query, Query):
            raise ConfigError("stage_from= goes with a query, and not with a mixture")
        rows = self.source
        if isinstance(rows, str):
            rows = query.session.sql("SELECT * FROM '" + rows.replace("'", "''") + "'")
        assert isinstance(rows, Query)
        found = {name: kind for name, kind, _ in rows._core.columns()}
        columns = []
        for name, kind, _ in query._core.columns():
            if name not in found:
                near = nearest_name(name, found)
                hint = f"; did they call it {near!r}?" if near else ""
                raise QueryError(
                    f"stage_from= has no column {name!r} of the query{hint}; it has {', '.join(found)}"
                )
            quoted = _core.quote_identifier(name)
            columns.append(
                quoted if found[name] == kind else f"arrow_cast({quoted}, '{kind}') AS {quoted}"
            )
        return query._replaced(rows, columns)


def _check_engine(engine: object, mode: str, place: object, source: object) -> None:
    """Check an engine against the other options; what its URL says is read where it is used."""
    if not isinstance(engine, str):
        raise ConfigError(
            f'stage_engine={engine!r} must be the URL of a cluster: "ballista://host:port"'
        )
    if source is not None or mode == "never":
        other = "stage_from=" if source is not None else 'stage="never"'
        raise ConfigError(
            f"stage_engine={engine!r} says what computes stages, and with {other} none is"
        )
    if place is None:
        raise ConfigError(
            f"stage_engine={engine!r} needs stage_dir=: a URL (s3://…), or a folder that all machines share, where the "
            "cluster writes and this process reads"
        )


def stages_of(query: Query | Mixture) -> list[StagedRows]:
    """The stages that a staged query reads."""
    return [
        StagedRows(why, path or "", rows, size, digest, seconds)
        for why, path, rows, size, digest, seconds in _core.stages_of(query._core)
    ]


def default_stage_dir() -> str:
    """Where stages are kept unless `stage_dir` says so: ``$TENSORQUERY_STAGES``, else in the temporary directory."""
    return str(stage_folder() / QUERY_STAGES)


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
    """Remove stages; those that a process of this machine uses stay.

    Without this, stages that nobody has used for seven days go when another one is built in the same place, and those
    used longest ago where all are more than `stage_max_bytes` of `create_dataloader`.

    Args:
        stage_dir: As for `create_dataloader`; None is the default folder.
        unused_days: Remove stages that were not used for so many days; 0 removes all. None: 0, unless `keep_bytes` says what
            goes.
        keep_bytes: Also remove those that were used longest ago, until no more bytes than this are left, as an int or a
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
