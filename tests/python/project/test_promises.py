"""The promises of docs/promises.md are numbered from 1, and test modules and page name each other."""

import ast
import re

from pages import ROOT, text_of

PAGE = text_of("docs/promises.md")
CITATION = re.compile(r"Promises? ([\d, and]+?) \(docs/promises\.md\)")


def cited(docstring):
    """The numbers that the docstring of a module cites."""
    found = CITATION.findall(docstring or "")
    return {int(number) for numbers in found for number in re.findall(r"\d+", numbers)}


def docstring(path):
    """The docstring of a module of Python or Rust."""
    text = path.read_text()
    if path.suffix == ".rs":
        return "\n".join(re.findall(r"^//! (.*)$", text, flags=re.MULTILINE))
    return ast.get_docstring(ast.parse(text))


def promises():
    """The name and the test modules of each promise, by its number."""
    parts = re.split(r"^## (\d+)\. (.*)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        int(number): (name, set(re.findall(r"`(test_\w+\.py|\w+\.rs)`", text)))
        for number, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


PATHS = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests/it").glob("*.rs")]
MODULES = {path.name: cited(docstring(path)) for path in PATHS}


def test_the_page_numbers_nine_promises_and_names_modules_for_each():
    found = promises()
    assert list(found) == list(range(1, 10))
    assert all(modules for _, modules in found.values())


def test_modules_cite_the_promises_for_which_the_page_names_them():
    found = promises()
    named = {
        module: {number for number, (_, modules) in found.items() if module in modules}
        for _, modules in found.values()
        for module in modules
    }
    assert len(named) >= 20
    citing = {name: numbers for name, numbers in MODULES.items() if numbers}
    assert {name: sorted(numbers) for name, numbers in citing.items()} == {
        name: sorted(numbers) for name, numbers in named.items()
    }


def test_a_citation_has_numbers_and_the_page():
    assert cited("Promises 1, 2 and 3 (docs/promises.md): rows.") == {1, 2, 3}
    assert cited("Promise 5 (docs/promises.md): states, and promise 6.") == {5}
    assert cited("Promise 5: states.") == set()
