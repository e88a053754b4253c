"""Messages to workers that live on: a few numbers in memory that the training process shares with them."""

from __future__ import annotations

from typing import Any

from tensorquery import _core
from tensorquery._util.shared_memory import SharedNumbers

__all__ = ["EpochSlots"]

_EPOCH, _DELIVERED, _RESUMED, _FIRST, _COUNTER, _GENERATION = range(6)
_NONE = -1


class EpochSlots:
    """Numbers that reach every worker of the loaders around a dataset, including persistent workers."""

    def __init__(self) -> None:
        self._numbers = SharedNumbers(6, "int64")
        self._slots[:] = (0, _NONE, 1, 0, 0, 0)

    @property
    def _slots(self) -> Any:
        return self._numbers.array

    def copied(self) -> EpochSlots:
        """A copy in memory of its own, where no epoch is delivered yet."""
        copy = EpochSlots()
        copy._slots[:] = self._slots
        copy.deliver(None)
        return copy

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers: `set_epoch` in the training process."""
        return int(self._slots[_EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._slots[_EPOCH] = epoch

    def deliver(self, epoch: int | None, resumed: bool = True, first: int = 0) -> None:
        """Set the epoch that a loader's workers deliver from now on; later changes of `epoch` do not matter.

        A worker that starts late must not take a later `set_epoch` for its own.

        Args:
            epoch: The epoch; None: the value of `epoch`.
            resumed: Whether they go on from the loaded state.
            first: The shard that the first worker reads: torch asks that one first, wherever a resumed epoch stands.
        """
        self._slots[_RESUMED] = int(resumed)
        self._slots[_FIRST] = first
        self._slots[_DELIVERED] = _NONE if epoch is None else epoch

    @property
    def delivered(self) -> int:
        """The epoch that a loader's workers deliver now, or -1."""
        return int(self._slots[_DELIVERED])

    @property
    def is_resumed(self) -> bool:
        """Whether they go on from the loaded state."""
        return bool(self._slots[_RESUMED])

    @property
    def first(self) -> int:
        """The shard that the first worker reads."""
        return int(self._slots[_FIRST])

    @property
    def counter(self) -> _core.Counter:
        """From which the workers take splits."""
        return _core.Counter(self._numbers.tensor, _COUNTER)

    @property
    def generation(self) -> int:
        """How often the plan has changed, or a state was loaded."""
        return int(self._slots[_GENERATION])

    @generation.setter
    def generation(self, generation: int) -> None:
        self._slots[_GENERATION] = generation
