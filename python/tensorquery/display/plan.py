"""A shard plan as a notebook shows it: the balance in a picture, and the shards in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tensorquery.display.html import Raw, box, failure, folded, line, sized, table, text_of

__all__ = ["Bar", "Plan", "balance_svg", "bars_of", "plan_html", "spell_steps"]

_SHOWN = 32
_MOST_BARS = 256
_WIDTH, _HEIGHT, _LEFT = 640, 120, 70


class Load(Protocol):
    """The load of one worker of a rank, as `Shard` says it."""

    @property
    def rank(self) -> int:
        """The rank."""
        ...

    @property
    def worker(self) -> int:
        """The worker on that rank."""
        ...

    @property
    def splits(self) -> int:
        """Number of splits."""
        ...

    @property
    def rows(self) -> int | None:
        """Rows before any filter, where known."""
        ...

    @property
    def bytes(self) -> int:
        """Stored bytes."""
        ...

    @property
    def batches_at_most(self) -> int | None:
        """Upper bound of batches, where known."""
        ...


class Steps(Protocol):
    """The rows and steps of one rank, as `RankSteps` says them."""

    @property
    def rows(self) -> int:
        """Rows."""
        ...

    @property
    def steps(self) -> int:
        """Batches."""
        ...


class Plan(Protocol):
    """The numbers of a plan, as `ShardPlan` has them."""

    world_size: int
    num_workers: int
    imbalance: float
    rank_imbalance: float
    files: int
    files_pruned: int
    row_groups: int
    row_groups_pruned: int
    quarantined: int

    @property
    def num_splits(self) -> int:
        """Number of splits."""
        ...

    @property
    def shards(self) -> Sequence[Load]:
        """The load of each (rank, worker)."""
        ...

    @property
    def ranks(self) -> Sequence[Steps]:
        """The rows and steps of each rank; empty where not known."""
        ...

    @property
    def quality(self) -> Any:
        """The prediction of shuffling: its text, and a ``warning``; None where nothing is shuffled."""
        ...


class Bar:
    """A bar for the load of one shard, rank or run of ranks.

    Attributes:
        label: Its name, in words.
        bytes: Stored bytes that it reads.
        odd: Whether it is drawn in the other shade: neighbours of one rank have the same.
    """

    def __init__(self, label: str, size: int, odd: bool) -> None:
        self.label = label
        self.bytes = size
        self.odd = odd


def bars_of(plan: Plan) -> tuple[list[Bar], str]:
    """The bars of a picture, at most 256, and what one of them stands for.

    Args:
        plan: Any plan.

    Returns:
        A bar for each shard; where these are too many, for each rank; or for the heaviest of several ranks.
    """
    if len(plan.shards) <= _MOST_BARS:
        return [
            Bar(f"rank {shard.rank}, worker {shard.worker}", shard.bytes, shard.rank % 2 == 1)
            for shard in plan.shards
        ], "shard"
    ranks = [0] * plan.world_size
    for shard in plan.shards:
        ranks[shard.rank] += shard.bytes
    if len(ranks) <= _MOST_BARS:
        return [Bar(f"rank {rank}", size, rank % 2 == 1) for rank, size in enumerate(ranks)], "rank"
    step = -(-len(ranks) // _MOST_BARS)
    runs = [(first, ranks[first : first + step]) for first in range(0, len(ranks), step)]
    bars = [
        Bar(f"heaviest of ranks {first} to {first + len(run) - 1}", max(run), number % 2 == 1)
        for number, (first, run) in enumerate(runs)
    ]
    return bars, f"heaviest of {step} ranks"


def balance_svg(bars: Sequence[Bar], what: str) -> Raw:
    """Bars of bytes with their mean, in the colour of the page's text.

    Args:
        bars: One or more.
        what: What a bar stands for.
    """
    most = max(bar.bytes for bar in bars)
    mean = sum(bar.bytes for bar in bars) / len(bars)
    if not most:
        return Raw("")
    room = min((_WIDTH - _LEFT) / len(bars), 60.0)
    width = room * 0.8
    drawn = []
    for number, bar in enumerate(bars):
        height = bar.bytes / most * _HEIGHT
        # The part that every step waits for is marked, where it matters.
        heavy = bar.bytes > 0.99 * most and most > 1.1 * mean
        shade = 'fill="#e0872b"' if heavy else 'fill="currentColor"'
        opacity = 0.95 if heavy else 0.55 if bar.odd else 0.4
        drawn.append(
            f'<rect x="{_LEFT + number * room:.1f}" y="{10 + _HEIGHT - height:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" {shade} fill-opacity="{opacity}">'
            f"<title>{text_of(bar.label)}: {sized(bar.bytes)}</title></rect>"
        )
    level = 10 + _HEIGHT - mean / most * _HEIGHT
    end = _LEFT + room * len(bars)
    # The labels of the mean and of the most must not lie over each other.
    place = max(level + 4, 26.0)
    return Raw(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + 32}" role="img" '
        f'aria-label="bytes by {text_of(what)}" style="max-width:{_WIDTH}px;width:100%;color:inherit" '
        f'font-size="11" font-family="inherit">'
        f"{''.join(drawn)}"
        f'<line x1="{_LEFT}" x2="{end:.1f}" y1="{level:.1f}" y2="{level:.1f}" stroke="currentColor" '
        f'stroke-dasharray="4 3"/>'
        f'<text x="{_LEFT - 6}" y="14" text-anchor="end" fill="currentColor">{sized(most)}</text>'
        f'<text x="{_LEFT - 6}" y="{place:.1f}" text-anchor="end" fill="currentColor" fill-opacity=".75">mean</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 26}" fill="currentColor" fill-opacity=".75">bytes by {text_of(what)}; '
        f"dashed: the mean</text></svg>"
    )


def plan_html(plan: Plan) -> str:
    """The plan in a box.

    Args:
        plan: Any plan.

    Returns:
        HTML.
    """
    try:
        return _plan_html(plan)
    except Exception as error:
        return box("ShardPlan", failure(error))


def _plan_html(plan: Plan) -> str:
    # It imports this package.

    shards = plan.shards
    bounded = any(shard.batches_at_most is not None for shard in shards)
    titles = ["rank", "worker", "splits", "rows before filters", "bytes"]
    rows = [
        [
            str(shard.rank),
            str(shard.worker),
            f"{shard.splits:,}",
            "?" if shard.rows is None else f"{shard.rows:,}",
            f"{shard.bytes:,}",
            *(["?" if (most := shard.batches_at_most) is None else f"{most:,}"] * bounded),
        ]
        for shard in shards[:_SHOWN]
    ]
    titles += ["batches at most"] * bounded
    shown = table(titles, rows, [True] * len(titles))
    more = len(shards) - len(rows)
    warning = None if plan.quality is None else plan.quality.warning
    return box(
        "ShardPlan",
        line(
            f"{plan.num_splits:,} splits",
            f"{plan.world_size:,} ranks × {max(1, plan.num_workers):,} workers",
            f"imbalance {plan.imbalance:.3f} over shards, {plan.rank_imbalance:.3f} over ranks (max over mean)",
        ),
        line(
            f"{plan.files - plan.files_pruned:,} of {plan.files:,} files",
            f"{plan.row_groups - plan.row_groups_pruned:,} of {plan.row_groups:,} row groups of the files listed",
            f"{sized(sum(shard.bytes for shard in shards))} to read",
        ),
        line(spell_steps(plan.ranks)) if plan.ranks else None,
        None if plan.quality is None else line(str(plan.quality)),
        None if warning is None else failure(f"warning: {warning}"),
        failure(f"left out: {plan.quarantined:,} bad parts; see dataset.quarantined")
        if plan.quarantined
        else None,
        balance_svg(*bars_of(plan)),
        folded("shards", Raw(shown + (line(f"… and {more:,} more shards") if more else ""))),
    )


def spell_steps(ranks: Sequence[Steps]) -> str:
    """Rows and steps in words."""

    def between(numbers: list[int], what: str) -> str:
        least, most = min(numbers), max(numbers)
        return f"{least:,} {what}" if least == most else f"{least:,} to {most:,} {what}"

    rows = between([rank.rows for rank in ranks], "rows")
    steps = between([rank.steps for rank in ranks], "steps")
    return f"every rank delivers {rows} in {steps}"
