"""The operators of a plan that has run, as a tree with rows and times."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["operator_tree"]

_WIDEST = 72
"""Characters of an operator: with the numbers before it a line of a notebook, which would be broken if it were longer."""


def operator_tree(operators: Sequence[tuple[int, str, int | None, int | None]]) -> str:
    """Draw the operators, each with its rows, its time and its share of all times.

    Args:
        operators: In pre-order: depth, the operator in a line, rows that it gave, and nanoseconds that it computed without those
            below it; None where it does not measure.

    Returns:
        A line per operator below a title.

    >>> print(operator_tree([(0, "FilterExec: x > 3", 2, 750_000), (1, "Scan", 1000, 250_000)]))
     rows      time  share  operator
        2  0.750 ms   75 %  FilterExec: x > 3
    1,000  0.250 ms   25 %  └─ Scan
    """
    total = sum(nanoseconds or 0 for _, _, _, nanoseconds in operators) or 1
    lines = [("rows", "time", "share", "operator")]
    leads = _leads([depth for depth, _, _, _ in operators])
    for lead, (_, operator, rows, nanoseconds) in zip(leads, operators, strict=True):
        text = lead + operator
        lines.append(
            (
                "" if rows is None else f"{rows:,}",
                "" if nanoseconds is None else f"{nanoseconds / 1e6:,.3f} ms",
                "" if nanoseconds is None else f"{nanoseconds / total:.0%}".replace("%", " %"),
                text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…",
            )
        )
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:3]]
    return "\n".join(
        "  ".join(
            [*(cell.rjust(width) for cell, width in zip(line, widths, strict=False)), line[3]]
        )
        for line in lines
    )


def _leads(depths: Sequence[int]) -> list[str]:
    """The text before each node of a tree in pre-order."""
    leads = []
    for number, depth in enumerate(depths):
        lead = ""
        for level in range(1, depth + 1):
            # Whether another child of the node at this level follows.
            later = next((other for other in depths[number + 1 :] if other <= level), 0)
            goes_on = later == level
            if level == depth:
                lead += "├─ " if goes_on else "└─ "
            else:
                lead += "│  " if goes_on else "   "
        leads.append(lead)
    return leads
