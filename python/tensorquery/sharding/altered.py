"""What a state says of alterations: when there was which, and what the present query does not say of rows delivered before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorquery.errors import CheckpointMismatchError
from tensorquery.sharding.file_rows import FileRows

__all__ = ["Altered"]

_MOST_LOG = 1000
"""Alterations that a state lists, the latest ones."""


@dataclass(frozen=True)
class Altered:
    """The alterations of a run.

    Attributes:
        log: Each alteration: epoch, step and change.
        names: The names of the queries of the mixture.
        weights: Their weights as plain data: a list, or a schedule; None for a single query.
        epoch: The epoch to which `past` belongs.
        past: By query, rows of files that were delivered in that epoch before the last alteration, where the query, or its
            files, changed.
    """

    log: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    weights: Any = None
    epoch: int = 0
    past: Mapping[str, FileRows] = field(default_factory=dict)

    def past_of(self, epoch: int) -> Mapping[str, FileRows]:
        """The rows of `past`, where they are of this epoch."""
        return self.past if epoch == self.epoch else {}

    def after(
        self,
        at: tuple[int, int],
        change: str,
        names: Sequence[str],
        weights: Any,
        past: Mapping[str, FileRows],
    ) -> Altered:
        """These alterations and one more, at an epoch and a step."""
        epoch, step = at
        log = (*self.log, {"epoch": epoch, "step": step, "change": change})[-_MOST_LOG:]
        return Altered(log, tuple(names), weights, epoch, past)

    def to_dict(self, epoch: int) -> dict[str, Any]:
        """As plain data for a state of an epoch.

        Raises:
            ConfigError: It would be longer than a state can be.
        """
        found: dict[str, Any] = {
            "log": [dict(entry) for entry in self.log],
            "names": list(self.names),
            "weights": self.weights,
        }
        past = self.past_of(epoch)
        if past:
            found["past"] = {name: rows.to_dict() for name, rows in past.items()}
        return found

    @classmethod
    def read(cls, found: Any, epoch: int) -> Altered | None:
        """Read it from a state of an epoch; None where nothing was altered.

        Raises:
            CheckpointMismatchError: It is damaged.
        """
        if found is None:
            return None
        if not isinstance(found, Mapping) or set(found) - {"past"} != {"log", "names", "weights"}:
            raise _damaged("is no mapping of 'log', 'names' and 'weights'")
        log, names, past = found["log"], found["names"], found.get("past", {})
        if (
            not isinstance(log, list)
            or not 0 < len(log) <= _MOST_LOG
            or not all(map(_is_entry, log))
        ):
            raise _damaged("does not list epoch, step and change of each alteration")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _damaged("does not name the queries")
        if not isinstance(past, Mapping):
            raise _damaged("does not say which rows were delivered")
        rows = {name: FileRows.read(value) for name, value in past.items()}
        return cls(tuple(log), tuple(names), found["weights"], epoch, rows)


def _is_entry(entry: Any) -> bool:
    kinds = {"epoch": int, "step": int, "change": str}
    return (
        isinstance(entry, Mapping) and {key: type(value) for key, value in entry.items()} == kinds
    )


def _damaged(how: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the state is damaged: its 'altered' {how}; load an earlier state"
    )
