"""Rooms of the crate import one way: each only those below it in the list at the top of `src/lib.rs`."""

import re

from pages import ROOT

SRC = ROOT / "src"

# Imports that go up, by the file and the room, each with its reason. None today.
EXCEPTIONS: dict[tuple[str, str], str] = {}

_PATH = re.compile(r"(?<![\w:$])(?:crate|self|super)(?:::\w+)+")
_USE = re.compile(r"(?m)^[ \t]*(?:pub(?:\([^)]*\))?[ ]+)?use\s+([^;]+);")
_TESTS = re.compile(r"(?m)^#\[cfg\(test\)\]\nmod \w+ \{.*?^\}", re.DOTALL)


def order():
    """The rooms from top to bottom."""
    lines = (SRC / "lib.rs").read_text().splitlines()
    return [found[1] for line in lines if (found := re.match(r"//! - `(\w+)`: ", line))]


def leaves(tree):
    """The paths of a use tree: `a::{b, c::d}` has `a::b` and `a::c::d`."""
    tokens, places = re.findall(r"::|[{},]|\*|\w+", tree), []

    def walk(at, prefix):
        path = list(prefix)
        while at < len(tokens):
            token = tokens[at]
            if token == "{":
                at += 1
                while tokens[at] != "}":
                    at = walk(at, path)
                    at += tokens[at] == ","
                return at + 1
            if token in ",}":
                break
            if token == "as":
                at += 2
                continue
            if token != "::":
                path.append(token)
            at += 1
        places.append(path)
        return at

    walk(0, [])
    return places


def module_of(file):
    """The path of a file's module: `["formats", "orc"]` of `src/formats/orc/mod.rs`."""
    parts = list(file.relative_to(SRC).with_suffix("").parts)
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def imported(text, module):
    """The first names of the paths of this crate in a file: rooms, and what `lib.rs` exports. Tests may look anywhere."""
    text = re.sub(r"(?m)//.*$", "", _TESTS.sub("", text))
    paths = [path for use in _USE.finditer(text) for path in leaves(use[1])]
    paths += [found[0].split("::") for found in _PATH.finditer(_USE.sub("", text))]
    names = set()
    for path in paths:
        if path[0] == "crate":
            names.add(path[1])
        elif path[0] == "super":
            ups = sum(name == "super" for name in path)
            if ups == len(module) < len(path):
                names.add(path[ups])
    return names


def upward(files, rooms):
    """Imports of a room that is not below: the file, and the room."""
    found, seen = [], 0
    for file, text in files:
        module = module_of(file)
        if not module or file.stem == "tests":
            continue
        for name in imported(text, module):
            # `Error`, `Result` and the like are names of `error`, which `lib.rs` exports.
            room = name if name in rooms else "error"
            if room == module[0]:
                continue
            seen += 1
            if rooms.index(room) < rooms.index(module[0]):
                found.append((str(file.relative_to(SRC)), room))
    return sorted(found), seen


def sources():
    return [(file, file.read_text()) for file in sorted(SRC.rglob("*.rs"))]


def test_every_room_is_in_the_list():
    rooms = {path.stem for path in SRC.iterdir()} - {"lib"}
    assert sorted(order()) == sorted(rooms)


def test_rooms_import_only_what_is_below_them():
    found, seen = upward(sources(), order())
    assert seen > 500
    assert found == sorted(EXCEPTIONS)


def test_an_import_that_goes_up_is_found():
    for planted in (
        "use crate::session::Plan;",
        "use crate::{Error, session::{Plan, Query}};",
        "    use super::super::stream::RowQueue;",
        "fn f() -> crate::iceberg::LakeTable {}",
        "pub(crate) use crate::query::{\n    cut::Cut,\n    parse::{Parsed as Other},\n};",
    ):
        file = SRC / "formats/planted.rs"
        assert len(upward([(file, planted)], order())[0]) == 1, planted
    for fine in (
        "use crate::{Error, Result, storage::FilePin};",
        "use super::Split;",
        "// as crate::session::Plan does",
        "#[cfg(test)]\nmod tests {\n    use crate::session::Plan;\n}\n",
    ):
        assert upward([(SRC / "formats/planted.rs", fine)], order())[0] == [], fine
