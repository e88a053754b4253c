"""Alterations that wait for their step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorquery._util.options import check_non_negative_int
from tensorquery.errors import ConfigError
from tensorquery.loading.alteration import Request
from tensorquery.loading.epoch_progress import Progress
from tensorquery.sharding.left import Left

if TYPE_CHECKING:
    from tensorquery.loading.dataloader import QueryDataLoader

__all__ = ["Pending"]


class Pending:
    """The alterations of a loader that were asked for with a step to come."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int, Request]] = []

    def __bool__(self) -> bool:
        return bool(self._changes)

    def clear(self) -> None:
        """Forget them."""
        self._changes = []

    def put(self, loader: QueryDataLoader, at_step: int, request: Request) -> bool:
        """Keep one for its step.

        Returns:
            Whether the step is to come; False: it is the next one.

        Raises:
            ConfigError: It is past, or the epoch ends before it.
        """
        check_non_negative_int("at_step", at_step)
        epoch, now, end = _standing(loader)
        if at_step < now:
            raise ConfigError(
                f"at_step={at_step} must be at least {now}: so many batches of epoch {epoch} were received already"
            )
        if end is not None and at_step >= max(end, 1):
            raise ConfigError(
                f"at_step={at_step} must be in {now}..{end}: epoch {epoch} has {end} steps, as it is now"
            )
        if at_step == now:
            return False
        self._changes = sorted(
            [*self._changes, (epoch, at_step, request)], key=lambda each: each[:2]
        )
        return True

    def apply(self, loader: QueryDataLoader) -> None:
        """Alter what is due before the next batch."""
        while self._changes:
            epoch, now, _ = _standing(loader, counts=False)
            due, at_step, request = self._changes[0]
            if (epoch, now) < (due, at_step):
                return
            self._changes.pop(0)
            if (epoch, now) != (due, at_step):
                raise ConfigError(
                    f"the query should be altered at step {at_step} of epoch {due}, and the loader is at step {now} of epoch "
                    f"{epoch} already"
                )
            loader._alter(request)


def _standing(loader: QueryDataLoader, *, counts: bool = True) -> tuple[int, int, int | None]:
    """The epoch, the batches of it that were received, and, where it `counts` and that is known, how many it has."""
    state = loader.dataset._state
    begin = loader._loaded or state.loaded
    if begin is None:
        progress = state.progress
        if progress.abandoned or not progress.begun:
            progress = Progress(state.slots.epoch)
        left, step, epoch = progress.left, progress.step, progress.epoch
    else:
        left, step, epoch = Left.read(begin["left"]), begin["step"], begin["epoch"]
        # The steps of a run on another topology do not say how many are left.
        counts = counts and not step
    before = 0 if left is None else left.steps
    if not counts:
        return epoch, before + step, None
    steps = state.steps(Progress(epoch, loader.num_workers, left=left))
    return epoch, before + step, None if steps is None else before + steps
