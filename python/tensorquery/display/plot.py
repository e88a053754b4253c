"""Pictures by matplotlib, which is asked for when one is drawn."""

from __future__ import annotations

import importlib
from typing import Any

from tensorquery.display.plan import Plan, bars_of

__all__ = ["draw_plan", "import_pyplot", "new_axes", "styled", "without_ground"]

# Between black and white: it can be read on either.
_GREY = "#808080"
_MARK = "#e0872b"


def import_pyplot() -> Any:
    """The module matplotlib.pyplot.

    Raises:
        ImportError: matplotlib is not installed; says how to install it.
    """
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install 'tensorquery[plot]'") from error


def new_axes(width: float = 8.0, height: float = 3.0) -> Any:
    """Axes of a new figure without a background, in a grey that light and dark pages let one read.

    Args:
        width: Inches.
        height: Inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure, axes = import_pyplot().subplots(figsize=(width, height), layout="constrained")
    without_ground(figure)
    return styled(axes)


def without_ground(figure: Any) -> None:
    """Let the page be the background of a figure.

    It is not made transparent: behind such a figure Jupyter puts a ground that fits its letters, black on a light page
    for one.
    """
    figure.patch.set_visible(False)


def styled(axes: Any) -> Any:
    """`axes` without a background, in a grey that light and dark pages let one read."""
    axes.patch.set_alpha(0)
    axes.tick_params(colors=_GREY)
    for spine in axes.spines.values():
        spine.set_color(_GREY)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(_GREY)
    return axes


def draw_plan(plan: Plan, axes: Any | None) -> Any:
    """The body of `ShardPlan.plot`."""
    if axes is None:
        axes = new_axes()
    else:
        import_pyplot()
    bars, what = bars_of(plan)
    unit, scale = _unit(max(bar.bytes for bar in bars))
    sizes = [bar.bytes / scale for bar in bars]
    colors = ["#4c8fce" if bar.odd else "#2f6ea8" for bar in bars]
    axes.bar(range(len(bars)), sizes, color=colors, width=0.8)
    mean = sum(sizes) / len(sizes)
    axes.axhline(mean, color=_MARK, linestyle="--", linewidth=1)
    # Beside the axes, where no bar is.
    axes.annotate(
        f"mean\n{mean:,.4g}",
        (1, mean),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=_MARK,
    )
    axes.set_ylim(0, max(*sizes, 1e-9) * 1.05)
    axes.set_xlabel(what)
    axes.set_ylabel(f"{unit} to read")
    axes.set_title(
        f"{plan.num_splits:,} splits, imbalance {plan.imbalance:.3f} over shards, "
        f"{plan.rank_imbalance:.3f} over ranks"
    )
    return axes


def _unit(most: int) -> tuple[str, int]:
    """The largest unit that fits at least once, and its bytes."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return next((unit for unit in units if most >= unit[1]), ("bytes", 1))
