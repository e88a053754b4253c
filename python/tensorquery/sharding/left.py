"""What is left of an epoch that was begun: ranges of rows, packed for a state."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorquery._util.digests import digest
from tensorquery.errors import CheckpointMismatchError

__all__ = ["Left", "packed"]

_MOST_TEXT = 16 << 20
_MOST_BYTES = 32 << 20
_DIGEST_LETTERS = 16
_KEYS = {"rows", "after"}
_OPTIONAL = {"steps", "anew"}
_MOST = 2**53


@dataclass(frozen=True)
class Left:
    """The rows that no run of an epoch has delivered, however many runs there were.

    Attributes:
        rows: Ranges of rows of splits, and of positions in shuffle windows, as the core packs them: compressed, in
            base 85.
        after: A digest of the run after which they were left, by which ranks that have not begun since are known.
        steps: Batches of each rank before, of all runs of the epoch. States of older versions do not say.
        anew: Whether the epoch was altered, so that its end follows from what is left.
    """

    rows: str
    after: str
    steps: int = 0
    anew: bool = False

    @classmethod
    def of(cls, found: bytes, after: tuple[Left | None, Mapping[str, Any]]) -> Left:
        """Pack what the core found after a run, which began with what was left before."""
        text = base64.b85encode(zlib.compress(found, 9)).decode()
        before, run = after
        steps = run["step"] + (0 if before is None else before.steps)
        return cls(text, digest_of_run(*after), steps, before is not None and before.anew)

    @classmethod
    def read(cls, found: Any) -> Left | None:
        """Read it from a state; None where its run began the epoch.

        Raises:
            CheckpointMismatchError: It is damaged, or larger than any.
        """
        if found is None:
            return None
        if not isinstance(found, Mapping) or set(found) - _OPTIONAL != _KEYS:
            raise _damaged("is no mapping of 'rows' and 'after'")
        rows, after = found["rows"], found["after"]
        steps, anew = found.get("steps", 0), found.get("anew", False)
        if type(steps) is not int or not 0 <= steps < _MOST or type(anew) is not bool:
            raise _damaged(f"is after {str(steps)[:60]} steps, which no rank has taken")
        if not isinstance(rows, str) or not isinstance(after, str):
            raise _damaged("is no text")
        if len(rows) > _MOST_TEXT or len(after) != _DIGEST_LETTERS:
            raise _damaged(f"has {len(rows) + len(after)} letters, more or fewer than any has")
        return cls(rows, after, steps, anew)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for a state."""
        steps = {"steps": self.steps} if self.steps else {}
        return {
            "rows": self.rows,
            "after": self.after,
            **steps,
            **({"anew": True} if self.anew else {}),
        }

    def packed(self) -> bytes:
        """The bytes that the core packed.

        Raises:
            CheckpointMismatchError: The text is damaged, or says more than any.
        """
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(base64.b85decode(self.rows), _MOST_BYTES)
        except (zlib.error, ValueError) as error:
            raise _damaged(f"cannot be unpacked: {error}") from error
        if not unpacking.eof or unpacking.unused_data:
            raise _damaged(f"ends too early, or has more than {_MOST_BYTES} bytes")
        return found


def packed(left: Left | None) -> bytes | None:
    """The bytes for the core; None where an epoch is whole."""
    return None if left is None else left.packed()


def digest_of_run(left: Left | None, run: Mapping[str, Any]) -> str:
    """A digest of a run and of what was left when it began: see `Left.after`."""
    return digest([None if left is None else left.rows, dict(run)])[:_DIGEST_LETTERS]


def _damaged(how: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the state is damaged: its 'left', the rows that are left of the epoch, {how}; load an earlier state"
    )
