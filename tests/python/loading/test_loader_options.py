"""The options of a loader are one dataclass, checked once; the public signatures have its names, types, defaults and
docs."""

import dataclasses
import inspect
import re

import pytest

import tensorquery as tq
from tensorquery.loading.options import LoaderOptions
from tensorquery.loading.tensors import TENSOR_OPTIONS, tensor_options

FIELDS = {field.name: field for field in dataclasses.fields(LoaderOptions)}


@pytest.mark.parametrize("function", [tq.create_dataloader, tq.QueryDataset.__init__])
def test_signatures_have_the_options_with_their_types_and_defaults(function):
    parameters = inspect.signature(function).parameters
    shared = [name for name in parameters if name in FIELDS]
    assert len(shared) >= 29
    for name in shared:
        parameter, field = parameters[name], FIELDS[name]
        assert (parameter.default, parameter.annotation) == (field.default, field.type), name
    missing = set(FIELDS) - set(shared)
    # The dataset hands on what makes tensors.
    assert missing == (set() if function is tq.create_dataloader else set(TENSOR_OPTIONS))


def test_options_of_tensors_have_the_defaults_of_to_tensors():
    for name, parameter in inspect.signature(tensor_options).parameters.items():
        assert FIELDS[name].default == parameter.default


@pytest.mark.parametrize("thing", [tq.create_dataloader, tq.QueryDataset])
def test_docs_name_every_argument_once(thing):
    text = inspect.getdoc(thing)
    args = text[text.index("\nArgs:\n") : text.index("\nRaises:\n")].split("\nReturns:\n")[0]
    named = re.findall(r"^    (?:\*\*)?(\w+):", args, re.MULTILINE)
    assert sorted(named) == sorted(inspect.signature(thing).parameters)


def test_they_are_what_they_were_when_they_were_checked():
    stack = {"x": ["a", "b"]}
    options = LoaderOptions(stack=stack, batch_size=7)
    stack["x"].append("c")
    assert '"c"' not in options.output.options
    assert options.deal.batch_size == 7
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.batch_size = 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("shuffle", "some"),
        ("shuffle_seed", -1),
        ("shuffle_buffer_size", 0),
        ("split_strategy", "best"),
        ("remainder", "odd"),
        ("partitions", 0),
        ("assignment", "lazy"),
        ("exclude", "rows"),
        ("on_error", "ignore"),
        ("stage", "maybe"),
        ("stage_timeout", 0),
        ("show_progress", "some"),
        ("nulls", object()),
        ("stack", ["a"]),
        ("decimal", "float16"),
        ("transform", 3),
        ("transform_threads", 2),
    ],
)
def test_a_malformed_one_cannot_be(name, value):
    with pytest.raises(tq.ConfigError, match=name):
        LoaderOptions(**{name: value})
