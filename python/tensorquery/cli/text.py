"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["text_table"]

_WIDEST = 60


def text_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]
) -> Iterator[str]:
    r"""Lines of a table.

    Args:
        titles: One for each column.
        rows: A text for each column; long ones are cut.
        numbers: Whether a column is flush right.

    >>> print("\n".join(text_table(["x", "name"], [["10", "a"], ["7", "b"]], [True, False])))
     x  name
    --  ----
    10  a
     7  b
    """
    shown = [[_short(text) for text in row] for row in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    shown.insert(1, ["-" * width for width in widths])
    for row in shown:
        placed = [
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, numbers, strict=True)
        ]
        yield "  ".join(placed).rstrip()


def _short(text: str) -> str:
    # A line break within a value would tear the table apart; other control characters change the terminal.
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
