"""Takes note of what a dataset delivers, and writes its receipt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorquery.errors import ConfigError
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.plan import DatasetPlan
from tensorquery.sharding.checkpoint import FORMAT, VERSION
from tensorquery.sharding.receipt import Chain, Span, checked_name, heads_of

__all__ = ["Deliveries", "state_of_plan"]

_NOTE = {"format": FORMAT, "version": VERSION}


class Deliveries:
    """The runs of a dataset in this process, and how far each was received.

    An iteration that is left early has delivered rows, too, which no later state says. So each is noted when it begins.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[dict[str, Any], Span]] = []
        self._run: dict[str, Any] = {}
        self._open: Progress | None = None
        self._first = 0
        self._chain: Chain | None = None

    def begun(self, plan: DatasetPlan, progress: Progress) -> None:
        """Note that an iteration begins; the one before it delivers no more."""
        if not plan.is_at_home:
            # A worker, or a copy: what it delivers goes to others.
            return
        self._close()
        run = _run_of(plan, progress)
        # Most epochs are of one run, which then is there once.
        self._run = next((old for old, _ in self._spans[-1:] if old == run), run)
        self._open, self._first = progress, progress.step

    def _close(self) -> None:
        """Write down how far the iteration came, and go on noting from there."""
        progress = self._open
        if progress is None or progress.step == self._first:
            return
        span = Span(0, progress.epoch, 1, self._first, progress.step)
        self._first = progress.step
        if self._spans and self._spans[-1][0] is self._run:
            together = self._spans[-1][1].joined(span)
            if together is not None:
                self._spans[-1] = (self._run, together)
                return
        self._spans.append((self._run, span))

    def receipt(
        self,
        plan: DatasetPlan,
        *,
        in_order: bool,
        name: str | None,
        after: Iterable[Any] | None,
    ) -> dict[str, Any]:
        """Add a record, and return the receipt; see `QueryDataset.receipt`."""
        name, heads = checked_name(name), heads_of(after)
        if not plan.is_at_home:
            raise ConfigError(
                "receipt() is for the dataset that was made in this process; a worker, and a copy, know only the batches "
                "that they have yielded"
            )
        self._close()
        for run, _ in self._spans:
            _check_order(run["layout"], in_order)
        if self._chain is None:
            self._chain = Chain(plan.topology.rank, heads)
        elif self._chain.after != heads:
            raise ConfigError(
                "after= differs from that of the first receipt() of this dataset, and a receipt goes on after the same ones "
                "from its first record to its last; give the same list each time"
            )
        spans, self._spans = self._spans, []
        self._chain.add(name, spans)
        return self._chain.to_dict()


def state_of_plan(entry: dict[str, Any]) -> dict[str, Any]:
    """What every state of a receipt's plan begins with."""
    own = ("fingerprint", "parts", "seed", "on_error")
    constant: dict[str, Any] = {key: entry[key] for key in own if key in entry}
    return {**_NOTE, **constant}


def _run_of(plan: DatasetPlan, progress: Progress) -> dict[str, Any]:
    """The run of an iteration, as a receipt has it, with its plan in it."""
    assert plan.core is not None
    deal = plan.deal
    constant = {key: value for key, value in plan.constant.items() if key not in _NOTE}
    described = {
        **constant,
        "splits": list(plan.core.options()),
        "exclude": [list(each) for each in deal.exclude],
        "shuffle": deal.shuffle,
        "buffer": deal.buffer,
        "stage": plan.stage_mode,
    }
    return {
        "plan": described,
        "layout": plan.epochs.layout(progress.workers or 0),
        "left": None if progress.left is None else progress.left.to_dict(),
    }


def _check_order(layout: dict[str, Any], in_order: bool) -> None:
    """Refuse runs whose batches come in an order that nobody can repeat."""
    if layout["dynamic"]:
        raise ConfigError(
            'with assignment="dynamic" which worker takes which split follows from their speed, so that a receipt could '
            'not say which rows a step had; use assignment="static"'
        )
    if layout.get("refills"):
        raise ConfigError(
            'with on_transform_error="skip" the rows of a step depend on which rows before it failed, so that a receipt could '
            "not say which rows a step had; leave failing rows out by a filter or exclude= (dataset.failed_rows names them)"
        )
    if layout["num_workers"] > 1 and not in_order:
        raise ConfigError(
            f"with in_order=False the {layout['num_workers']} workers deliver in the order of their speed, so that a "
            "receipt could not say which rows a step had; use in_order=True"
        )
