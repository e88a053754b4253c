"""Staging: parts of a query that cannot run split by split are computed once, kept, and read split by split."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

from tensorquery import _core
from tensorquery._util.options import check_choice, check_seconds, expanded_path, nearest_name
from tensorquery.errors import ConfigError, QueryError
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query
from tensorquery.sql.stages import (
    DEFAULT_TIMEOUT,
    STAGE_MODES,
    StagedRows,
    bound_of,
    build_stages,
    place_of,
)

__all__ = ["Staging", "stages_of"]

Staged = TypeVar("Staged", "Query", "Mixture", "Query | Mixture")


@dataclass(frozen=True)
class Staging:
    """How a loader stages its query.

    Attributes:
        mode: "auto", "never" or "always".
        place: A folder or URL; None is a folder of this user's on this machine.
        timeout: Seconds to wait for another process that builds.
        max_bytes: Bytes of all stages of the place above which unused stages are removed; None is no bound.
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
        seconds = check_seconds("stage_timeout", DEFAULT_TIMEOUT if timeout is None else timeout)
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
        return cls(mode, own, seconds, source, engine, show_progress, bound)

    def apply(self, query: Staged) -> Staged:
        """Make a query that reads this one's stages; build stages that do not exist yet.

        Raises:
            StorageError: The place cannot be written, or has no room, or another process builds for longer than the timeout.
            DataError: The staged rows cannot be computed.
        """
        if self.source is not None:
            return self._given(query)
        core = build_stages(
            query._core,
            self.mode,
            place_of(self.place),
            timeout=self.timeout,
            max_bytes=self.max_bytes,
            engine=self.engine,
            show_progress=self.show_progress,
        )
        return query if core is query._core else query._over(core)

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
    """Check an engine against the other options; its URL is parsed where it is used."""
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
