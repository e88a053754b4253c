"""Options of tensors: from Python values to the JSON that Rust reads. Rust checks them against the schema."""

from __future__ import annotations

import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorquery._util.options import check_choice, check_positive_int, check_text, nearest_name
from tensorquery.errors import ConfigError

__all__ = ["TENSOR_OPTIONS", "tensor_options"]

TENSOR_OPTIONS = ("nulls", "stack", "pad", "categories", "decimal", "keyed")
"""The keywords of `to_tensors` that choose how columns become tensors."""
_POLICIES = ("error", "nan", "mask")
_DECIMALS = ("float64", "int64")


def tensor_options(
    *,
    nulls: Any = "error",
    stack: Mapping[str, Sequence[str]] | None = None,
    pad: Mapping[str, Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    decimal: str = "float64",
) -> str:
    """Check the options of `to_tensors` as far as one can without a schema.

    Returns:
        JSON for ``_core.TensorConverter``; plain data, so that a recipe can carry it.

    Raises:
        ConfigError: A value is of the wrong type or not among those allowed.
    """
    return json.dumps(
        {
            "nulls": _nulls(nulls),
            "stack": [
                [name, _names(f"stack[{name!r}]", columns)]
                for name, columns in _items("stack", stack)
            ],
            "pad": {name: _pad(name, pad) for name, pad in _items("pad", pad)},
            "categories": {
                name: _categories(name, values) for name, values in _items("categories", categories)
            },
            "decimal": check_choice("decimal", decimal, _DECIMALS),
        }
    )


def _items(option: str, value: Any) -> Iterable[tuple[str, Any]]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ConfigError(f"{option} must be a dict by column name, not {value!r}")
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"{option}: names must be strings, not {name!r}")
    return value.items()


def _names(option: str, value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{option} must be a list of column names, not {value!r}")
    names = _in_order(option, value)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{option}: column names must be strings, not {name!r}")
    return names


def _nulls(nulls: Any) -> dict[str, Any]:
    if isinstance(nulls, Mapping):
        return {
            "columns": {
                name: _policy(f"nulls[{name!r}]", rule) for name, rule in _items("nulls", nulls)
            }
        }
    if isinstance(nulls, str) and nulls not in _POLICIES:
        near = nearest_name(nulls, _POLICIES)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"nulls={nulls!r}: allowed are 'error', 'nan', 'mask', a number, or a dict by column (a string "
            f"to fill with is given by column: nulls={{'name': {nulls!r}}}){hint}"
        )
    return {"all": _policy("nulls", nulls)}


def _policy(option: str, rule: Any) -> Any:
    if isinstance(rule, str) and rule in _POLICIES:
        return rule
    return {"fill": _value(option, rule)}


def _pad(name: str, pad: Any) -> dict[str, Any]:
    max_length = None
    if isinstance(pad, tuple):
        if len(pad) != 2:
            raise ConfigError(f"pad[{name!r}] must be a value or (value, max_length), not {pad!r}")
        pad, max_length = pad
    if max_length is not None:
        max_length = check_positive_int(f"pad[{name!r}] max_length", max_length)
    return {"value": _value(f"pad[{name!r}]", pad), "max_length": max_length}


def _categories(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"categories[{name!r}] must be a list of values, not {values!r}")
    option = f"categories[{name!r}]"
    return [_value(option, value) for value in _in_order(option, values)]


def _in_order(option: str, values: Iterable[Any]) -> list[Any]:
    """The values as a list, where their order is one that all processes have."""
    if isinstance(values, set | frozenset):
        raise ConfigError(
            f"{option} must be a list, not a set, whose order is another one in each process; write sorted(…)"
        )
    return list(values)


def _value(option: str, value: Any) -> dict[str, Any]:
    """One value as Rust reads it. Floats travel as text: JSON has neither NaN nor infinities."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a scalar of numpy or torch
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, numbers.Integral):
        whole = int(value)
        if not -(2**63) <= whole < 2**64:
            raise ConfigError(f"{option}: {whole} does not fit 64 bits")
        return {"int": whole}
    if isinstance(value, numbers.Real):
        return {"float": repr(float(value))}
    if isinstance(value, str):
        return {"text": check_text(option, value)}
    if isinstance(value, bytes | bytearray):
        return {"bytes": list(value)}
    raise ConfigError(
        f"{option}: allowed are bool, int, float, str and bytes values, not {value!r} of type {type(value).__name__}"
    )
