"""Every public name is documented in Google's style: its purpose, arguments, results and errors."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap

import pytest

import tensorquery as tq
import tensorquery.compat
import tensorquery.integrations.nodes
import tensorquery.integrations.trainer
from tensorquery._util import options
from tensorquery._util.options import check_bool

MODULES = {
    tq: [*tq.__all__, "QueryNode", "load_ipython_extension", "unload_ipython_extension"],
    tq.compat: tq.compat.__all__,
    tq.integrations.nodes: tq.integrations.nodes.__all__,
    tq.integrations.trainer: tq.integrations.trainer.__all__,
}
CHECKS = {name for name in vars(options) if name.startswith("check_")}
# Made for the program, by a function or method that the class' docstring names.
MADE = re.compile(r"\b(Made by|that) `\w+(\.\w+)?`")


def members(kind):
    """The public methods and properties of a class, also those from tensorquery's own base classes."""
    for base in kind.__mro__:
        if base.__module__.startswith("tensorquery"):
            yield from (name for name in vars(base) if not name.startswith("_"))


def public():
    """Every public class, function, method and property, by its qualified name."""
    found = {}
    for module, names in MODULES.items():
        for name in names:
            thing = getattr(module, name)
            if not callable(thing):
                continue
            qualified = f"{module.__name__}.{name}"
            found[qualified] = thing
            if inspect.isclass(thing):
                for member in members(thing):
                    value = getattr(thing, member)
                    if callable(value) or isinstance(value, property):
                        found[f"{qualified}.{member}"] = value
    return found


PUBLIC = public()
FUNCTIONS = {name: each for name, each in PUBLIC.items() if inspect.isroutine(each)}
PROPERTIES = {name: each for name, each in PUBLIC.items() if isinstance(each, property)}
CLASSES = {name: each for name, each in PUBLIC.items() if inspect.isclass(each)}


def sections(thing):
    """The sections of a docstring by their titles; what is before the first is ""."""
    found, title = {"": ""}, ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            title = line[:-1]
            found[title] = ""
        else:
            found[title] += f"{line}\n"
    return found


def named(section):
    """The names that a section such as Args lists: those before colons, at its outermost level."""
    return set(re.findall(r"^ {4}\*{0,2}(\w+)(?:, \w+)*: ", section, flags=re.MULTILINE))


def documented_fields(kind):
    """The fields of a class with a string below them that says what they are."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    return {
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def described(kind):
    """The parameters and fields that a class describes, in whichever way."""
    parts = sections(kind)
    listed = named(parts.get("Args", "")) | named(parts.get("Attributes", ""))
    return listed | documented_fields(kind)


def fields(kind):
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", []))


def parameters(thing):
    return [
        name
        for name in inspect.signature(thing).parameters
        if name not in ("self", "cls") and not name.startswith("_")
    ]


def raised(function):
    """The errors that a function's own lines raise: by `raise`, and by the checks of `options`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found.add(ast.unparse(node.exc.func).rpartition(".")[2])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in CHECKS:
            found.add("ConfigError")
    return found


def test_there_is_something_to_check():
    assert len(CLASSES) > 40
    assert len(FUNCTIONS) > 80
    assert len(CHECKS) > 3
    assert len(PROPERTIES) > 20
    assert sum(bool(raised(each)) for each in FUNCTIONS.values()) > 20
    assert sum(bool(parameters(each)) for each in FUNCTIONS.values()) > 60


def test_every_public_name_has_a_docstring():
    assert [name for name, thing in PUBLIC.items() if not sections(thing)[""].strip()] == []


def test_every_parameter_is_described():
    missing = [
        f"{name}({parameter})"
        for name, function in FUNCTIONS.items()
        for parameter in parameters(function)
        if parameter not in named(sections(function).get("Args", ""))
    ]
    assert missing == []


def test_no_parameter_is_described_that_is_not_there():
    surplus = [
        f"{name}({parameter})"
        for name, function in FUNCTIONS.items()
        for parameter in named(sections(function).get("Args", "")) - set(parameters(function))
    ]
    assert surplus == []


def test_every_result_is_described():
    missing = [
        name
        for name, function in FUNCTIONS.items()
        if inspect.signature(function).return_annotation not in ("None", None)
        and not {"Returns", "Yields"} & set(sections(function))
    ]
    assert missing == []


@pytest.mark.parametrize("kind", ["functions", "properties"])
def test_every_error_that_is_raised_is_described(kind):
    things = FUNCTIONS
    if kind == "properties":
        things = {name: each.fget for name, each in PROPERTIES.items()}
    missing = [
        f"{name}: {error}"
        for name, function in things.items()
        for error in raised(function)
        if (error not in sections(function).get("Raises", ""))
    ]
    assert missing == []


@pytest.mark.slow
def test_what_a_program_constructs_says_with_what():
    checked, missing = 0, []
    for name, kind in CLASSES.items():
        if issubclass(kind, Exception) or getattr(kind, "_is_protocol", False):
            continue
        if MADE.search(sections(kind)[""]):
            continue
        checked += 1
        missing += [f"{name}({each})" for each in parameters(kind) if each not in described(kind)]
    assert missing == []
    assert checked > 10


def test_the_fields_of_records_are_described():
    records = {name: kind for name, kind in CLASSES.items() if fields(kind)}
    assert len(records) > 10
    missing = [
        f"{name}.{field}"
        for name, kind in records.items()
        for field in fields(kind)
        if not field.startswith("_") and field not in described(kind)
    ]
    assert missing == []


def test_a_docstring_without_its_parts_is_found():
    """The checks above find the faults of a badly described function."""

    def bad(size, name):
        """Something.

        Args:
            size: How many.

        Raises:
            ValueError: It is none.
        """
        check_bool("name", name)
        raise TypeError(size)

    parts = sections(bad)
    assert named(parts["Args"]) == {"size"}
    assert "Returns" not in parts
    assert raised(bad) == {"ConfigError", "TypeError"}
    assert parts["Raises"].strip() == "ValueError: It is none."
