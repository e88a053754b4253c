"""A request to a loader, as plain data that goes to another process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

Condition = tuple[str, str, float | int]
"""Column, operator of SQL, value: the convention of pyarrow's filters."""


@dataclass(frozen=True)
class Request:
    """One pass over files, in batches of torch tensors."""

    path: str
    """A folder or a file."""

    batch_size: int
    columns: tuple[str, ...] | None = None
    """Columns to read; None: all."""

    filters: tuple[Condition, ...] = ()
    """Conditions that all hold."""

    stack: tuple[str, ...] = ()
    """Columns that become one (N, F) tensor "x"."""

    shuffle_buffer: int | None = None
    """Rows that are mixed."""

    workers: int = 0
    """Processes that read; 0: threads of this one."""

    rank: int = 0
    world_size: int = 1
    format: str = "parquet"
    """Or "csv", or "json" for an object per line."""

    threads: int = 2
    """Cores there are; for libraries that count more than they may use."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Request:
        values: dict[str, Any] = json.loads(text)
        for name in ("columns", "filters", "stack"):
            if values[name] is not None:
                values[name] = tuple(
                    tuple(item) if isinstance(item, list) else item for item in values[name]
                )
        return Request(**values)

    def but(self, **changes: Any) -> Request:
        """Return the request with some parts changed."""
        return replace(self, **changes)

    @property
    def needs(self) -> set[str]:
        """The abilities that a loader needs to answer it."""
        parts = {
            "filters": self.filters,
            "stack": self.stack,
            "shuffle": self.shuffle_buffer,
            "workers": self.workers,
            "ranks": self.world_size > 1,
            "text": self.format != "parquet",
        }
        return {name for name, asked in parts.items() if asked}

    @property
    def files(self) -> str:
        """The files as a glob, for libraries that take no folder."""
        ending = f".{self.format}"
        return self.path if self.path.endswith(ending) else f"{self.path}/*{ending}"

    @property
    def sql(self) -> str:
        """The conditions in SQL; empty where there are none."""
        return " AND ".join(f"{column} {operator} {value}" for column, operator, value in self.filters)  # fmt: skip
