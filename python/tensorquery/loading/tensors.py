"""Arrow batches as tensors: one block of memory per batch, one tensor per column over it.

The Rust core gathers the rows of a batch into one block; this module puts a tensor of the planned dtype
and shape over each column of it, without a copy. The table of Arrow types and output formats is
``docs/types.md``.

torch, numpy, pyarrow and JAX are imported when their output format is chosen, never before.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from tensorquery import _core
from tensorquery._util.options import check_choice
from tensorquery._util.tensor_views import tensor_over
from tensorquery.errors import ConfigError, DataError, UnsupportedTypeError
from tensorquery.loading.jax_arrays import Placement
from tensorquery.loading.keyed import (
    KeyedColumns,
    KeyedJagged,
    check_keyed,
    keyed_makers,
    keyed_tensor_class,
)
from tensorquery.loading.tensor_options import TENSOR_OPTIONS, tensor_options

__all__ = [
    "TENSOR_OPTIONS",
    "BatchBuilder",
    "Encoded",
    "Jagged",
    "check_output_format",
    "tensor_options",
    "to_tensors",
]

OUTPUT_FORMATS = ("torch", "numpy", "kjt", "jax", "arrow", "dict")
OF_TENSORS = ("torch", "numpy", "kjt", "jax")
"""Formats whose values the core gathers into a block."""

# Offset in bytes, and count of elements, in the batch's block; or a whole block of its own.
Slot = tuple[int, int] | _core.Block
# (rows, block, [slot], [strings], [categories]): one batch from Rust.
Raw = tuple[int, Any, Sequence[Slot], Sequence[list[Any]], Sequence[list[Any]]]


class Encoded(NamedTuple):
    """A dictionary column: the batch's own categories, and one code per row.

    Categories stand in the order of their first appearance in the batch, however the file encoded
    them. For codes that mean the same in every batch, name the ``categories``.
    """

    codes: Any
    """int64 of shape (N,): positions in `categories`."""
    categories: list[Any]
    """Each distinct value once: str, bytes, bool, int or float."""


class Jagged(NamedTuple):
    """Lists of different lengths, as numpy has no array for: row i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: Any
    """The elements of all rows, of shape (total,) or, for lists of vectors, (total, K)."""
    offsets: Any
    """int64 of shape (N + 1,), from 0 to the total."""


def check_output_format(output_format: object) -> str:
    """Return `output_format` where it is known and its library is installed.

    Raises:
        ConfigError: It is none of "torch", "numpy", "kjt", "jax", "arrow" and "dict".
        ImportError: Its library is missing; says how to install it.
    """
    name = check_choice("output_format", output_format, OUTPUT_FORMATS)
    _library(name)
    return name


def _library(output_format: str) -> ModuleType:
    libraries = {"torch": "torch", "kjt": "torch", "numpy": "numpy", "jax": "numpy"}
    module = libraries.get(output_format, "pyarrow")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        others = ["numpy", "jax", "arrow", "dict"] if module == "torch" else ["torch", "numpy"]
        choices = f"{', '.join(map(repr, others[:-1]))} or {others[-1]!r}"
        default = ", the default," if output_format == "torch" else ""
        raise ImportError(
            f"output_format={output_format!r}{default} needs {module}, which cannot be imported ({error}): "
            f"pip install {module}, or choose output_format={choices}",
            name=module,
        ) from error


# --------------------------------------------------------------------------------------------------------
# Libraries: how each puts an array over memory.


class _Numpy:
    def __init__(self) -> None:
        self._numpy = _library("numpy")

    def dtype(self, column: str, name: str) -> Any:
        return self._numpy.dtype(name)

    def whole(self, dtype: Any) -> Callable[[Any], Any]:
        """A function that puts a 1-D array over all of a block."""
        return partial(self._numpy.frombuffer, dtype=dtype)

    def array(self, dtype: Any) -> Callable[[Any, tuple[int, int]], Any]:
        """A function that puts a 1-D array over (offset, count) of a block."""
        frombuffer, empty = self._numpy.frombuffer, self._numpy.empty

        def over(block: Any, slot: tuple[int, int]) -> Any:
            offset, count = slot
            # An empty block has no address to put an array over. One that torch has pinned is a tensor.
            memory = block.numpy() if hasattr(block, "numpy") else block
            return frombuffer(memory, dtype, count, offset) if count else empty(0, dtype)

        return over

    def permute(self, array: Any, order: Sequence[int]) -> Any:
        return array.transpose(order)

    def jagged(self, values: Any, offsets: Any) -> Any:
        return Jagged(values, offsets)

    def check_jagged(self, column: str) -> None:
        """Nothing: any NumPy will do."""

    def joined(self, arrays: Sequence[Any], dtype: str) -> Any:
        """The arrays one after the other, as this dtype."""
        return self._numpy.concatenate([array.astype(dtype, copy=False) for array in arrays])

    def equal(self, one: Any, other: Any) -> bool:
        return bool((one == other).all())

    def filled(self, rows: int, each: int) -> Any:
        """For each row the number `each`."""
        return self._numpy.full(rows, each, dtype="int64")

    def differences(self, ends: Any) -> Any:
        return self._numpy.diff(ends)

    def counts(self, valid: Any, each: int) -> Any:
        """For each row `each` where it is valid, else 0."""
        return valid.astype("int64") * each


class _Torch:
    def __init__(self) -> None:
        self._torch = _library("torch")

    def dtype(self, column: str, name: str) -> Any:
        dtype = getattr(self._torch, name, None)
        if dtype is None:
            raise UnsupportedTypeError(
                f"column {column!r} needs torch.{name}, which torch {self._torch.__version__} does not have: "
                f"cast it in SQL (to BIGINT, or to DECIMAL for values beyond it), update torch to 2.3 or "
                f'newer, or choose output_format="numpy"'
            )
        return dtype

    def whole(self, dtype: Any) -> Callable[[Any], Any]:
        """A function that puts a 1-D tensor over all of a block."""
        return partial(self._torch.frombuffer, dtype=dtype)

    def array(self, dtype: Any) -> Callable[[Any, tuple[int, int]], Any]:
        """A function that puts a 1-D tensor over (offset, count) of a block."""
        frombuffer, tensor = self._torch.frombuffer, self._torch.Tensor

        def over(block: Any, slot: tuple[int, int]) -> Any:
            offset, count = slot
            if count and type(block) is not tensor:
                # The usual case, with one call less.
                return frombuffer(block, dtype=dtype, count=count, offset=offset)
            return tensor_over(block, dtype, offset, count)

        return over

    def permute(self, array: Any, order: Sequence[int]) -> Any:
        return array.permute(order)

    def jagged(self, values: Any, offsets: Any) -> Any:
        return self._torch.nested.nested_tensor_from_jagged(values, offsets)

    def check_jagged(self, column: str) -> None:
        """Raise where this torch makes no jagged tensors of values and offsets."""
        if not hasattr(self._torch.nested, "nested_tensor_from_jagged"):
            raise UnsupportedTypeError(
                f"column {column!r} needs torch.nested.nested_tensor_from_jagged, which torch {self._torch.__version__} does "
                f"not have: fill its rows to one length (pad={{{column!r}: 0}}), update torch to 2.5 or newer, or choose "
                'output_format="numpy"'
            )

    def joined(self, arrays: Sequence[Any], dtype: str) -> Any:
        """The tensors one after the other, as this dtype; pinned where they are."""
        torch, wanted = self._torch, getattr(self._torch, dtype)
        total = sum(len(array) for array in arrays)
        joined = torch.empty(total, dtype=wanted, pin_memory=arrays[0].is_pinned())
        return torch.cat([array.to(wanted) for array in arrays], out=joined)

    def equal(self, one: Any, other: Any) -> bool:
        return bool(self._torch.equal(one, other))

    def filled(self, rows: int, each: int) -> Any:
        """For each row the number `each`."""
        return self._torch.full((rows,), each, dtype=self._torch.int64)

    def differences(self, ends: Any) -> Any:
        return self._torch.diff(ends)

    def counts(self, valid: Any, each: int) -> Any:
        """For each row `each` where it is valid, else 0."""
        return valid.to(self._torch.int64) * each


# --------------------------------------------------------------------------------------------------------
# The plan of a run: for each output one function from the raw batch to its value.


def _maker(spec: dict[str, Any], kit: _Numpy | _Torch, prefix: str = "") -> Callable[[Raw], Any]:
    column = prefix + spec["name"]
    match spec["kind"]:
        case "dense":
            return _dense(spec, kit, kit.dtype(column, spec["dtype"]))
        case "padded":
            return _padded(spec, kit.array(kit.dtype(column, spec["dtype"])))
        case "jagged":
            kit.check_jagged(column)
            return _jagged(spec, kit, kit.array(kit.dtype(column, spec["dtype"])))
        case "encoded":
            codes, categories = spec["codes"], spec["categories"]
            int64 = kit.array(kit.dtype(column, "int64"))
            return lambda raw: Encoded(int64(raw[1], raw[2][codes]), raw[4][categories])
        case "text":
            index = spec["index"]
            return lambda raw: raw[3][index]
        case "struct":
            fields = [(field["name"], _maker(field, kit, f"{column}.")) for field in spec["fields"]]
            return lambda raw: {name: make(raw) for name, make in fields}
        case kind:
            raise UnsupportedTypeError(
                f"column {column!r}: the extension module delivers {kind!r}, which this version of tensorquery "
                "does not know; reinstall the package"
            )


def _dense(spec: dict[str, Any], kit: _Numpy | _Torch, dtype: Any) -> Callable[[Raw], Any]:
    slot, shape, permutation = spec["slot"], tuple(spec["shape"]), spec["permutation"]
    over, whole = kit.array(dtype), kit.whole(dtype)

    def flat(raw: Raw) -> Any:
        at = raw[2][slot]
        return over(raw[1], at) if type(at) is tuple else whole(at)

    if not shape:
        return flat
    if permutation is None:
        return lambda raw: flat(raw).reshape(raw[0], *shape)
    order = (0, *(axis + 1 for axis in permutation))
    return lambda raw: kit.permute(flat(raw).reshape(raw[0], *shape), order)


def _padded(spec: dict[str, Any], over: Callable[..., Any]) -> Callable[[Raw], Any]:
    slot, shape, max_length = spec["slot"], tuple(spec["shape"]), spec["max_length"]
    width = 1
    for axis in shape:
        width *= axis

    def make(raw: Raw) -> Any:
        rows, count = raw[0], raw[2][slot][1]
        length = max_length
        if length is None:
            length = count // (rows * width) if rows and width else 0
        return over(raw[1], raw[2][slot]).reshape(rows, length, *shape)

    return make


def _jagged(
    spec: dict[str, Any], kit: _Numpy | _Torch, over: Callable[..., Any]
) -> Callable[[Raw], Any]:
    values, offsets, shape = spec["values"], spec["offsets"], tuple(spec["shape"])
    int64 = kit.array(kit.dtype(spec["name"], "int64"))

    def make(raw: Raw) -> Any:
        ends = int64(raw[1], raw[2][offsets])
        elements = over(raw[1], raw[2][values])
        if shape:
            elements = elements.reshape(int(ends[-1]), *shape)
        return kit.jagged(elements, ends)

    return make


_BITS = re.compile(r"\d+$")
_UNKNOWN_BYTES = 256


def _row_bytes(spec: dict[str, Any]) -> int:
    match spec["kind"]:
        case "dense":
            bits = _BITS.search(spec["dtype"])
            return int(math.prod(spec["shape"])) * (int(bits[0]) // 8 if bits else 1)
        case "encoded":
            return 8
        case "struct":
            return sum(map(_row_bytes, spec["fields"]))
        case _:
            return _UNKNOWN_BYTES


@dataclass(frozen=True)
class TensorOutput:
    """How batches come out.

    Attributes:
        format: "torch", "numpy", "kjt", "jax", "arrow" or "dict".
        options: From `tensor_options`.
        keyed: From `check_keyed`.
    """

    format: str
    options: str
    keyed: KeyedColumns = field(default_factory=dict, kw_only=True)

    @property
    def core_options(self) -> str | None:
        """The options for the core; None where it delivers Arrow data."""
        return self.options if self.format in OF_TENSORS else None

    @property
    def identity(self) -> list[Any]:
        """The choices by which a state knows batches of its own form."""
        return [self.format, self.options, *([self.keyed] if self.keyed else [])]

    def builder(self, schema: Any) -> BatchBuilder:
        """A builder of such batches of a schema.

        Args:
            schema: Anything with ``__arrow_c_schema__``.

        Raises:
            ConfigError: The format is unknown, or an option does not fit the schema.
            UnsupportedTypeError: A column has no tensor form.
        """
        return BatchBuilder(
            schema, output_format=self.format, options=self.options, keyed=self.keyed
        )


class BatchBuilder:
    """Builds the batches of one run; every choice is made and checked at construction.

    Args:
        schema: The query's schema: anything with ``__arrow_c_schema__``.
        output_format: "torch", "numpy", "kjt", "jax", "arrow" or "dict". For "jax" it builds NumPy arrays, which a
            `Placement` then puts on a device.
        options: From `tensor_options`; None: its defaults.
        keyed: From `check_keyed`; None: no keyed outputs.

    Raises:
        ConfigError: An option names an unknown column, does not fit a column's type, or needs torch or
            numpy output.
        UnsupportedTypeError: A column has no tensor form.
        ImportError: The output format's library is missing.
    """

    def __init__(
        self,
        schema: Any,
        *,
        output_format: str = "torch",
        options: str | None = None,
        keyed: KeyedColumns | None = None,
    ) -> None:
        self.output_format = check_output_format(output_format)
        if output_format == "kjt" and not keyed:
            raise ConfigError(
                'output_format="kjt" needs keyed=, which says the columns: keyed={"sparse": ["item", "shop"]}'
            )
        options = tensor_options() if options is None else options
        self._schema = schema
        self._specs: list[dict[str, Any]] = []
        self.converter: _core.TensorConverter | None = None
        """Turns pieces of Arrow data into what `build` takes; None for "arrow" and "dict"."""
        if output_format in OF_TENSORS:
            kit = _Numpy() if output_format in ("numpy", "jax") else _Torch()
            finish = keyed_tensor_class() if output_format == "kjt" else KeyedJagged
            self.converter = _core.TensorConverter(schema, options)
            self._specs = json.loads(self.converter.outputs())
            packing, packed = keyed_makers(keyed or {}, self._specs, kit, finish, _maker)
            alone = [spec for spec in self._specs if spec["name"] not in packed]
            self._makers = [(spec["name"], _maker(spec, kit)) for spec in alone] + packing
        elif keyed:
            raise ConfigError(
                f"keyed={keyed!r}: only for output_format 'torch', 'numpy' and 'kjt'; {output_format!r} keeps Arrow's own values"
            )
        elif options != tensor_options():
            defaults = json.loads(tensor_options())
            chosen = [
                name for name, value in json.loads(options).items() if value != defaults[name]
            ]
            raise ConfigError(
                f"{', '.join(chosen)}: only for output_format 'torch' and 'numpy'; "
                f"{output_format!r} keeps Arrow's own values and nulls"
            )

    @property
    def names(self) -> list[str]:
        """The names of the outputs, in their order; known for "torch" and "numpy"."""
        return [spec["name"] for spec in self._specs]

    @property
    def jagged(self) -> list[str]:
        """The names of the outputs with lists of different lengths, and of keyed ones."""
        others = {spec["name"] for spec in self._specs if spec["kind"] != "jagged"}
        return [name for name, _ in self._makers if name not in others]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, about: lists and strings have no length before they are read."""
        return sum(map(_row_bytes, self._specs))

    def gather(self, pieces: Sequence[Any]) -> Any:
        """Gather the rows of `pieces`, batches of this schema, into what `build` takes.

        Raises:
            DataError: A null that the policy does not cover, an overflow, a list too long, or an unknown
                category; names the column.
        """
        if self.converter is not None:
            return self.converter.convert(pieces)
        return _core.merge_batches(self._schema, pieces)

    def build(self, raw: Any) -> Any:
        """Make the batch that the user sees.

        Args:
            raw: From `gather` or from the Rust stream: the tuple `Raw` for tensors and arrays, an Arrow
                batch for "arrow" and "dict".

        Returns:
            A dict from column name to tensor, array, list, `Encoded`, `Jagged`, `KeyedJagged` or dict; for "arrow" a
            ``pyarrow.RecordBatch``, for "dict" a dict of lists.
        """
        if self.converter is not None:
            return {name: make(raw) for name, make in self._makers}
        batch = _library("arrow").record_batch(raw)
        return batch if self.output_format == "arrow" else _objects(batch)


def _objects(batch: Any) -> dict[str, list[Any]]:
    """The columns of a `pyarrow.RecordBatch` as lists of Python objects."""
    found: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in found:
            raise ConfigError(
                f"two columns are named {name!r}, and a dict can hold only one; rename one of them"
            )
        try:
            found[name] = column.to_pylist()
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"column {name!r} ({column.type}) has a value that Python's own types do not hold ({error}); cast it in SQL, "
                'or choose output_format="arrow"'
            ) from error
    return found


def to_tensors(
    batch: Any,
    *,
    output_format: str = "torch",
    nulls: Any = "error",
    stack: Mapping[str, Sequence[str]] | None = None,
    pad: Mapping[str, Any] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    decimal: str = "float64",
    keyed: Mapping[str, Sequence[str] | Mapping[str, str]] | None = None,
) -> Any:
    """Convert Arrow data to tensors, copying each value once.

    All outputs of one call lie in one block of memory, which lives as long as any of them; each is a
    tensor of its own, and writing into it changes no other.

    Args:
        batch: N rows: anything with ``__arrow_c_array__`` or ``__arrow_c_stream__``, such as a
            ``pyarrow.Table``, a ``polars.DataFrame`` or a ``datafusion`` frame.
        output_format: "torch", "numpy", "jax", "arrow" (a ``pyarrow.RecordBatch``) or "dict" (lists); "kjt" is "torch" with
            keyed outputs as TorchRec's ``KeyedJaggedTensor``.
        nulls: What a null becomes: "error", "nan" (floats only), "mask" (0, "" or an empty list, and a
            second output ``<column>_mask`` that is True where the value is valid), or a fill value. A dict
            chooses by column; a null in a column that it does not name is an error.
        stack: Output name to scalar columns that are packed into its (N, F) tensor.
        pad: For columns of variable lists: the value after a list's last element, or (value, L); the
            output is (N, L) instead of jagged, where L defaults to the batch's longest list.
        categories: For string, binary and dictionary columns: all values; the output is int64
            positions in that list.
        decimal: "float64", or "int64" for unscaled integers.
        keyed: Output name to columns of integer ids, scalars or lists, that are packed into one `KeyedJagged`; or to
            a dict from each such column to a column of its ids' weights. A NULL is an error, or under
            ``nulls={column: "mask"}`` a row without ids; then no mask is delivered.

    Returns:
        Column name to tensor. Scalars have shape (N,), fixed-size lists of length K (N, K). Dates, times
        and timestamps are int64 in the column's own unit.

    Raises:
        ConfigError: An option names an unknown column or does not fit the column's type.
        UnsupportedTypeError: A column has no tensor form; names the column and its type.
        DataError: A null under nulls="error", an overflow, a list beyond L, or an unknown category;
            names the column.
    """
    check_output_format(output_format)
    schema, pieces = _core.read_arrow(batch)
    options = tensor_options(
        nulls=nulls, stack=stack, pad=pad, categories=categories, decimal=decimal
    )
    builder = BatchBuilder(
        schema, output_format=output_format, options=options, keyed=check_keyed(keyed)
    )
    found = builder.build(builder.gather(pieces))
    return Placement()(found)() if output_format == "jax" else found
