"""Tests of which ``make test`` runs a part of the cases, and ``make test-long`` all: those that ``in_part.txt`` names."""

import hashlib
import itertools
import math
from pathlib import Path

__all__ = ["parts", "without_the_rest"]

FILE = Path(__file__).parents[1] / "in_part.txt"


def parts():
    """The file of each test below ``tests``, its name, and of how many cases one is run; none of 0."""
    lines = FILE.read_text().splitlines()
    words = (line.split() for line in lines if line and not line.startswith("#"))
    return {(file, name): int(one_in) for one_in, file, name in words}


def without_the_rest(items):
    """Collected tests, in their order, and those of them that only ``make test-long`` runs."""
    listed = parts()
    groups = {}
    for item in items:
        key = item.location[0].removeprefix("tests/"), getattr(item, "originalname", None)
        if key in listed:
            groups.setdefault(key, []).append(item)
    left = set()
    for key, cases in groups.items():
        kept = _spread(cases, math.ceil(len(cases) / listed[key]) if listed[key] else 0)
        left.update(item for item in cases if item not in kept)
    return [item for item in items if item not in left], [item for item in items if item in left]


def _spread(cases, number):
    """So many cases: as many values of each parameter as they can have, then as many pairs of values."""
    values = {case: _values(case) for case in cases}
    pairs = {case: {*itertools.combinations(sorted(own), 2)} for case, own in values.items()}
    rest = sorted(cases, key=lambda case: hashlib.sha256(case.nodeid.encode()).digest())
    kept, seen, together = set(), set(), set()
    while len(kept) < number:
        best = max(rest, key=lambda case: (len(values[case] - seen), len(pairs[case] - together)))
        rest.remove(best)
        kept.add(best)
        seen |= values[best]
        together |= pairs[best]
    return kept


def _values(case):
    callspec = getattr(case, "callspec", None)
    if callspec is None:
        return set()
    plain = str | int | float | None
    return {
        (name, repr(value) if isinstance(value, plain) else f"case {callspec.indices[name]}")
        for name, value in callspec.params.items()
    }
