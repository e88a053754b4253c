"""Columns packed into one keyed jagged output: ids of several features, and how many each row has of each.

This is the form that embedding tables for recommenders take: TorchRec's ``KeyedJaggedTensor``, and without
TorchRec a `KeyedJagged` with the same fields.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tensorquery._util.options import nearest_name
from tensorquery.errors import ConfigError, DataError, UnsupportedTypeError

__all__ = ["KeyedColumns", "KeyedJagged", "check_keyed", "keyed_makers", "keyed_tensor_class"]

KeyedColumns: TypeAlias = dict[str, dict[str, str | None]]
"""By output: the columns of ids, in order, each with its column of weights."""

Spec: TypeAlias = dict[str, Any]
"""An output of the core, as its converter describes it."""

Make: TypeAlias = Callable[[Any], Any]
"""Makes an output from a raw batch."""

# Makes the values of a column, and how many each row has.
_Part: TypeAlias = Callable[[Any], tuple[Any, Any]]


class KeyedJagged(NamedTuple):
    """The ids of F features for N rows, one feature after the other.

    Feature f of row i has ``lengths[f * N + i]`` ids. They stand in `values` after those of all features before
    f, and of the rows before i of feature f.
    """

    keys: list[str]
    """The F columns, in order."""
    values: Any
    """int64 of shape (total,)."""
    lengths: Any
    """int64 of shape (F * N,)."""
    weights: Any = None
    """float32 of shape (total,): a weight of each id; None without weights."""


def check_keyed(keyed: Any) -> KeyedColumns:
    """Check the option ``keyed`` as far as one can without a schema.

    Raises:
        ConfigError: It is no dict of output names to columns, or weighs some columns of an output and not all.
    """
    if keyed is None:
        return {}
    if not isinstance(keyed, Mapping):
        raise ConfigError(
            f'keyed must be a dict by output name, for example {{"sparse": ["item", "shop"]}}, not {keyed!r}'
        )
    found: KeyedColumns = {}
    for name, columns in keyed.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"keyed: names of outputs must be strings, not {name!r}")
        option = f"keyed[{name!r}]"
        if isinstance(columns, str | bytes | set | frozenset) or not isinstance(columns, Iterable):
            raise ConfigError(
                f"{option} must be a list of columns, or a dict of columns to their columns of weights, not {columns!r}"
            )
        pairs = (
            list(columns.items()) if isinstance(columns, Mapping) else [(c, None) for c in columns]
        )
        if not pairs:
            raise ConfigError(f"{option} names no column")
        for column, weights in pairs:
            if not isinstance(column, str) or not (weights is None or isinstance(weights, str)):
                raise ConfigError(
                    f"{option}: columns must be strings, not {weights if isinstance(column, str) else column!r}"
                )
        if len(dict(pairs)) < len(pairs):
            raise ConfigError(f"{option} names a column twice: {[column for column, _ in pairs]}")
        without = [column for column, weights in pairs if weights is None]
        if without and len(without) < len(pairs):
            raise ConfigError(
                f"{option} has weights for some columns and none for {without}; give all of them weights, or pack them apart"
            )
        found[name] = dict(pairs)
    return found


def keyed_tensor_class() -> Any:
    """TorchRec's `KeyedJaggedTensor`.

    Raises:
        ImportError: TorchRec is missing, or does not fit torch; says what to do.
    """
    try:
        return importlib.import_module("torchrec.sparse.jagged_tensor").KeyedJaggedTensor
    except (ImportError, OSError) as error:
        raise ImportError(
            f'output_format="kjt" needs torchrec, which cannot be imported ({error}): run `pip install torchrec fbgemm-gpu` '
            'with the versions that go with your torch, or choose output_format="torch", which gives keys, values and lengths',
            name="torchrec",
        ) from error


def keyed_makers(
    keyed: KeyedColumns,
    specs: Sequence[Spec],
    kit: Any,
    finish: Callable[..., Any],
    maker: Callable[[Spec, Any], Make],
) -> tuple[list[tuple[str, Make]], set[str]]:
    """Make the functions from a raw batch to the keyed outputs.

    Args:
        keyed: From `check_keyed`.
        specs: The outputs of the core, as its converter describes them.
        kit: How a library puts arrays over memory, joins and compares them.
        finish: Makes an output of keys, values, lengths and weights.
        maker: Makes the function to an array of numbers.

    Returns:
        The outputs with their functions, and the names of the core's outputs that are packed into them.

    Raises:
        ConfigError: A column is unknown or packed elsewhere, or an output has the name of another.
        UnsupportedTypeError: A column holds no ids, or no weights.
    """
    named = {spec["name"]: spec for spec in specs}
    masks = {spec["masks"]: spec for spec in specs if "masks" in spec}
    packed: set[str] = set()
    makers = []
    for output, columns in keyed.items():
        weights = {column for column in columns.values() if column is not None}
        if shared := weights & {*columns}:
            raise ConfigError(f"keyed[{output!r}] uses {sorted(shared)} as ids and as weights")
        parts: dict[str, _Part] = {}
        for column in (*columns, *weights):
            spec = named.get(column)
            if spec is None or "masks" in spec:
                near = nearest_name(column, named)
                hint = f"; did you mean {near!r}?" if near else ""
                raise ConfigError(
                    f"keyed[{output!r}]: {column!r} is no column of the query, or one that is packed into a stack{hint}"
                )
            mask = masks.get(column)
            _check_numbers(output, spec, are_weights=column in weights)
            parts[column] = _part(spec, mask, kit, maker)
            packed |= {column} if mask is None else {column, mask["name"]}
        makers.append((output, _joining(output, columns, parts, kit, finish)))
    for output in keyed:
        if output in named and output not in packed:
            raise ConfigError(
                f"two outputs would be named {output!r}: keyed[{output!r}] and another one; rename one of them"
            )
    return makers, packed


def _check_numbers(output: str, spec: Spec, *, are_weights: bool) -> None:
    """Check that the values of a column can be ids, or weights."""
    column, kind, shape = spec["name"], spec["kind"], spec.get("shape", ())
    hashed = f"hash64({column}, 0, 1000000)"
    if not (kind == "dense" and len(shape) <= 1) and not (kind == "jagged" and not shape):
        hint = {
            "padded": "leave it out of pad",
            "text": f"hash it in SQL: {hashed}",
            "encoded": f"hash it in SQL: {hashed}, or name its categories",
        }.get(kind, "take a field or an element of it in SQL")
        raise UnsupportedTypeError(
            f"keyed[{output!r}]: column {column!r} is neither numbers nor lists of numbers; {hint}"
        )
    dtype = spec["dtype"]
    if are_weights:
        if not dtype.startswith(("float", "int", "uint")):
            raise UnsupportedTypeError(
                f"keyed[{output!r}]: weights must be numbers, and column {column!r} holds {dtype}"
            )
    elif not dtype.startswith(("int", "uint")) or dtype == "uint64":
        raise UnsupportedTypeError(
            f"keyed[{output!r}]: ids must be integers of up to 64 bits with a sign, and column {column!r} holds {dtype}; hash or "
            f"cast it in SQL: {hashed}, or CAST({column} AS BIGINT)"
        )


def _part(spec: Spec, mask: Spec | None, kit: Any, maker: Callable[[Spec, Any], Make]) -> _Part:
    """How a column goes into a keyed output. A NULL row that a mask tells has no value."""
    int64 = kit.array(kit.dtype(spec["name"], "int64"))
    if spec["kind"] == "jagged":
        values, offsets = spec["values"], spec["offsets"]
        over = kit.array(kit.dtype(spec["name"], spec["dtype"]))

        def of_lists(raw: Any) -> tuple[Any, Any]:
            # A masked list is empty.
            slots = raw[2]
            return over(raw[1], slots[values]), kit.differences(int64(raw[1], slots[offsets]))

        return of_lists
    each = math.prod(spec["shape"])
    rows = maker(spec, kit)
    if mask is None:
        return lambda raw: (rows(raw).reshape(-1), kit.filled(raw[0], each))
    valid = maker(mask, kit)

    def of_valid(raw: Any) -> tuple[Any, Any]:
        is_valid = valid(raw)
        return rows(raw)[is_valid].reshape(-1), kit.counts(is_valid, each)

    return of_valid


def _joining(
    output: str,
    columns: Mapping[str, str | None],
    parts: Mapping[str, _Part],
    kit: Any,
    finish: Callable[..., Any],
) -> Make:
    keys = list(columns)
    ids = [parts[column] for column in keys]
    weighing = [(column, weights, parts[weights]) for column, weights in columns.items() if weights]

    def make(raw: Any) -> Any:
        made = [part(raw) for part in ids]
        lengths = [length for _, length in made]
        found = []
        # Either all columns have weights, or none has.
        for (column, weights, part), length in zip(weighing, lengths, strict=False):
            values, own = part(raw)
            if not kit.equal(own, length):
                raise DataError(_uneven(output, column, weights, length.tolist(), own.tolist()))
            found.append(values)
        return finish(
            keys=list(keys),
            values=kit.joined([values for values, _ in made], "int64"),
            lengths=kit.joined(lengths, "int64"),
            weights=kit.joined(found, "float32") if found else None,
        )

    return make


def _uneven(
    output: str, column: str, weights: str, ids: Sequence[int], others: Sequence[int]
) -> str:
    row = next(
        row for row, (one, other) in enumerate(zip(ids, others, strict=True)) if one != other
    )
    return (
        f"keyed[{output!r}]: row {row} of the batch has {ids[row]} ids in column {column!r} and {others[row]} weights in "
        f"{weights!r}; each id needs one weight"
    )
