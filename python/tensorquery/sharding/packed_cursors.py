"""Cursors in few letters: one of a shard with hundreds of open splits has thousands of numbers, which are much alike."""

from __future__ import annotations

import base64
import json
import zlib
from itertools import starmap
from operator import sub
from typing import Any

__all__ = ["pack_cursor", "unpack_cursor"]

_SHORT = 64
"""Numbers that are left as they are: they can be read, and would not become shorter."""
_MOST_LETTERS = 1 << 20
_MOST_BYTES = 4 << 20


def pack_cursor(numbers: list[int]) -> list[int] | str:
    """The numbers of a cursor for a state: themselves, or a text where there are many.

    They are mostly pairs of a split and its row, so that each is written as the difference to the one before the last.

    >>> pack_cursor([1, 2, 3])
    [1, 2, 3]
    >>> unpack_cursor(pack_cursor([*range(1000)])) == [*range(1000)]
    True
    """
    if len(numbers) <= _SHORT:
        return numbers
    steps = [*numbers[:2], *starmap(sub, zip(numbers[2:], numbers, strict=False))]
    text = json.dumps(steps, separators=(",", ":"))
    return base64.b85encode(zlib.compress(text.encode())).decode()


def unpack_cursor(packed: Any) -> list[int]:
    """The numbers of a cursor in a state.

    Raises:
        ValueError: They are no such numbers.
    """
    if isinstance(packed, str):
        packed = _unpacked(packed)
    if not isinstance(packed, list):
        raise ValueError("it is no list")
    for number in packed:
        if type(number) is not int or not 0 <= number < 2**64:
            raise ValueError("it has other things than numbers")
    return packed


def _unpacked(text: str) -> list[int]:
    unpacking = zlib.decompressobj()
    if len(text) > _MOST_LETTERS:
        raise ValueError(f"it has {len(text)} letters, more than any")
    try:
        found = unpacking.decompress(base64.b85decode(text), _MOST_BYTES)
        steps = json.loads(found)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error
    if (
        not unpacking.eof
        or not isinstance(steps, list)
        or not all(type(step) is int for step in steps)
    ):
        raise ValueError("it ends too early, or has other things than numbers")
    for at in range(2, len(steps)):
        steps[at] += steps[at - 2]
    return steps
