"""The tables at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from compare.bench import Verdict

Row = tuple[str, float, str, bool]
"""A target: its name, the figure, the wanted figure in words, and whether it is met."""

HEAD = (
    "| work | batch size | loader | rows/s (millions) | seconds | spread | first batch (ms) | peak memory (MiB) |\n"
    "|---|---:|---|---:|---:|---:|---:|---:|"
)


def print_verdicts(verdicts: Sequence[Verdict]) -> bool:
    """The targets met and missed; True when all are met."""
    print("| target | figure | wanted | |\n|---|---:|---:|---|")
    for one in verdicts:
        figure = "not measured" if one.figure is None else f"{one.figure:.3f}"
        wanted = f"{'>=' if one.at_least else '<='} {one.wanted:g}"
        if one.aim is not None:
            wanted += f" (aim {one.aim:g})"
        note = f" ({one.note})" if one.note else ""
        print(f"| {one.what} | {figure} | {wanted} | {'met' if one.met else 'MISSED'}{note} |")
    met = sum(one.met for one in verdicts)
    print(f"\n{met} of {len(verdicts)} targets met")
    return met == len(verdicts)


def end_with(found: Sequence[Row]) -> NoReturn:
    """Print the targets met and missed, and end with a status other than zero when one is missed."""
    print("\n| target | figure | wanted | |\n|---|---:|---:|---|")
    for what, figure, wanted, met in found:
        print(f"| {what} | {figure:.3f} | {wanted} | {'met' if met else 'MISSED'} |")
    raise SystemExit(0 if all(met for *_, met in found) else 1)
