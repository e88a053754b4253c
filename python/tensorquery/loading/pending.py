"""Alterations that wait for their step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tensorquery._util.options import check_non_negative_int
from tensorquery.errors import ConfigError
from tensorquery.loading.alteration import Request
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.sharding.left import Left

__all__ = ["Pending", "Standing"]


class Standing(NamedTuple):
    """Where a loader is in its epoch."""

    epoch: int
    step: int
    """Batches of each rank that were received of the epoch, by all runs of it."""
    left: Left | None
    """What was left of it when the run began."""
    is_fresh: bool
    """Whether the steps to come follow from what was left: the run is on this topology."""

    @classmethod
    def of(cls, state: EpochState, loaded: Mapping[str, Any] | None) -> Standing:
        """The standing of a dataset, or of a state that was loaded and not begun."""
        begin = loaded or state.loaded
        if begin is None:
            progress = state.progress
            if progress.abandoned or not progress.begun:
                progress = Progress(state.slots.epoch)
            epoch, step, left = progress.epoch, progress.step, progress.left
        else:
            epoch, step, left = begin["epoch"], begin["step"], Left.read(begin["left"])
        before = 0 if left is None else left.steps
        return cls(epoch, before + step, left, begin is None or not step)

    def end(self, state: EpochState, workers: int) -> int | None:
        """The step with which the epoch ends; None where it is not known."""
        if not self.is_fresh:
            return None
        steps = state.steps(Progress(self.epoch, workers, left=self.left))
        before = 0 if self.left is None else self.left.steps
        return None if steps is None else before + steps


class Pending:
    """The alterations of a loader that were asked for with a step to come."""

    def __init__(self) -> None:
        self._requests: list[tuple[int, int, Request]] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def clear(self) -> None:
        """Forget them."""
        self._requests = []

    def put(self, at_step: int, request: Request, now: Standing, end: int | None) -> bool:
        """Keep one for its step.

        Returns:
            Whether the step is to come; False: it is the next one.

        Raises:
            ConfigError: It is past, or the epoch ends before it.
        """
        check_non_negative_int("at_step", at_step)
        if at_step < now.step:
            raise ConfigError(
                f"at_step={at_step} must be at least {now.step}: so many batches of epoch {now.epoch} were received already"
            )
        if end is not None and at_step >= max(end, 1):
            raise ConfigError(
                f"at_step={at_step} must be in {now.step}..{end}: epoch {now.epoch} has {end} steps, as it is now"
            )
        if at_step == now.step:
            return False
        entry = (now.epoch, at_step, request)
        self._requests = sorted([*self._requests, entry], key=lambda each: each[:2])
        return True

    def due(self, now: Standing) -> Request | None:
        """The next one of this step.

        Raises:
            ConfigError: Its step is past.
        """
        if not self._requests or (now.epoch, now.step) < self._requests[0][:2]:
            return None
        epoch, at_step, request = self._requests.pop(0)
        if (now.epoch, now.step) != (epoch, at_step):
            raise ConfigError(
                f"the query should be altered at step {at_step} of epoch {epoch}, which has ended before; this is step "
                f"{now.step} of epoch {now.epoch}"
            )
        return request
