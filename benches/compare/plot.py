"""The picture of a run: how far each target is met."""

from __future__ import annotations

import math
from pathlib import Path

from compare.bench import Bench

MET, MISSED = "#2f7d4f", "#b5443c"
MOST_BYTES = 200_000


def draw(bench: Bench, path: Path) -> None:
    """A bar per target, on a scale of logarithms: right of the line it is met."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [one for one in bench.verdicts if one.attainment is not None]
    if not shown:
        raise SystemExit("nothing was measured that could be drawn")
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.26 * len(shown)))
    places = range(len(shown), 0, -1)
    values = [math.log2(one.attainment or 1.0) for one in shown]
    axes.barh(places, values, color=[MET if one.met else MISSED for one in shown], height=0.7)
    for place, value, one in zip(places, values, shown, strict=True):
        side = "left" if value >= 0 else "right"
        axes.annotate(
            f"{one.figure:.3g}", (value, place), ha=side, va="center", fontsize=7,
            xytext=(3 if value >= 0 else -3, 0), textcoords="offset points",
        )  # fmt: skip
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(list(places), [one.what for one in shown], fontsize=7)
    low, high = math.floor(min(0, *values)) - 0.5, math.ceil(max(0, *values)) + 0.5
    axes.set_xlim(low, high)
    ticks = range(math.ceil(low), math.floor(high) + 1)
    axes.set_xticks(list(ticks), [f"{2.0**tick:g}" for tick in ticks], fontsize=7)
    axes.set_xlabel("figure by target: 1 is just met, more is better (figures at the bars)", fontsize=8)  # fmt: skip
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MOST_BYTES}")
