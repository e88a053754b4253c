"""Promise: what `make test` leaves to `make test-long` is named by a list whose lines are true, and what it keeps has each value of
each parameter."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import parts

TESTS = Path(__file__).parents[2]
FILE = "python/some.py"


@pytest.mark.parametrize(("file", "name"), parts.parts())
def test_each_line_names_a_test(file, name):
    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE)


def test_no_line_comes_twice():
    lines = [line.split() for line in parts.FILE.read_text().splitlines() if line[0] != "#"]
    assert len(parts.parts()) == len(lines)
    assert [line[1:] for line in lines] == sorted(line[1:] for line in lines)


class Case(SimpleNamespace):
    __hash__ = object.__hash__


def cases(name, *params):
    return [
        Case(
            location=[f"tests/{FILE}"],
            originalname=name,
            nodeid=f"{name}[{number}]",
            callspec=SimpleNamespace(params=own, indices=dict.fromkeys(own, number)),
        )
        for number, own in enumerate(params)
    ]


def test_what_is_kept_has_each_value(monkeypatch):
    monkeypatch.setattr(parts, "parts", lambda: {(FILE, "test_b"): 3, (FILE, "test_c"): 0})
    # Objects are told apart by their place.
    grid = [{"x": x, "y": y, "z": object()} for x in "abcd" for y in (1, None, "1")]
    first, thinned, long = cases("test_a", {}, {}), cases("test_b", *grid), cases("test_c", {}, {})
    kept, left = parts.without_the_rest([*first, *thinned, *long])
    assert kept[:2] == first
    assert left[-2:] == long
    assert len(kept) == 2 + 4
    own = [item.callspec.params for item in kept[2:]]
    assert {item["x"] for item in own} == {*"abcd"}
    assert {item["y"] for item in own} == {1, None, "1"}
    assert {*map(id, kept), *map(id, left)} == {*map(id, [*first, *thinned, *long])}
