"""Batches with the values and types of torch-dataloader-utils.

Numbers and booleans are tensors (or arrays), everything else is a list of Python objects. A null is NaN among numbers,
so that integers with a null are float64 in that batch, and None in a list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorquery.errors import DataError
from tensorquery.loading.tensors import BatchBuilder, TensorOutput, tensor_options

__all__ = ["OUTPUT_FORMATS", "CompatBatches", "CompatOutput", "Output"]

OUTPUT_FORMATS = ("arrow", "dict", "numpy", "torch")
_FLOATS = ("halffloat", "float", "double")
_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *_FLOATS,
)  # fmt: skip
_TEXTS = (
    "string", "large_string", "string_view", "binary", "large_binary", "binary_view",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """How the columns of a query become batches.

    Attributes:
        wanted: What the user asked for: "torch", "numpy", "arrow" or "dict".
        core: The core's output: these tensors, or Arrow batches if a column is neither number nor text.
        numbers: The columns that become tensors.
        masked: Of the columns that may hold nulls, those which come with a mask of the valid rows.
        nulls: The core's policy by column.
    """

    wanted: str
    core: str
    numbers: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    nulls: dict[str, str] | None = None

    @classmethod
    def of(cls, schema: Any, wanted: str) -> Output:
        """Choose for a schema.

        Args:
            schema: The query's `pyarrow.Schema`.
            wanted: The user's `output_format`.

        Returns:
            How its columns become batches.
        """
        if wanted in ("arrow", "dict"):
            return cls(wanted, wanted)
        kinds = {field.name: str(field.type) for field in schema}
        numbers = tuple(name for name, kind in kinds.items() if kind in _NUMBERS)
        nulls = {
            field.name: "nan" if kinds[field.name] in _FLOATS else "mask"
            for field in schema
            if field.nullable
        }
        masked = tuple(name for name, policy in nulls.items() if policy == "mask")
        plain = all(kind in (*_NUMBERS, *_TEXTS) for kind in kinds.values())
        if not plain or any(mask_of(name) in kinds for name in masked):
            return cls(wanted, "arrow", numbers)
        return cls(wanted, wanted, numbers, masked, nulls)

    @property
    def options(self) -> dict[str, Any]:
        """The options with which the dataset is made."""
        return {"output_format": self.core, **({"nulls": self.nulls} if self.nulls else {})}


def mask_of(column: str) -> str:
    """The name of a column's mask in the core's batches."""
    return f"{column}_mask"


class CompatBatches(BatchBuilder):
    """Builds batches as an `Output` says.

    Args:
        schema: The query's schema: anything with ``__arrow_c_schema__``.
        output: How its columns become batches.
    """

    def __init__(self, schema: Any, output: Output) -> None:
        options = None if output.nulls is None else tensor_options(nulls=output.nulls)
        super().__init__(schema, output_format=output.core, options=options)
        self._output = output
        self._kit: _Kit = _TorchKit() if output.wanted == "torch" else _NumpyKit()

    def build(self, raw: Any) -> Any:
        """Make the batch that the user sees.

        Args:
            raw: What the core delivers; see `BatchBuilder.build`.

        Returns:
            A dict from column name to tensor, array or list; for "arrow" a ``pyarrow.RecordBatch``.

        Raises:
            DataError: A null among booleans, which have no tensor with it; names the column.
        """
        batch = super().build(raw)
        output = self._output
        if output.wanted in ("arrow", "dict"):
            return batch
        if output.core == "arrow":
            return {
                name: self._of_arrow(name, batch.column(at))
                for at, name in enumerate(batch.schema.names)
            }
        for name in output.masked:
            valid = batch.pop(mask_of(name))
            if not valid.all():
                batch[name] = self._with_nulls(name, batch[name], valid)
        return batch

    def _of_arrow(self, name: str, column: Any) -> Any:
        if name not in self._output.numbers:
            return column.to_pylist()
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype == object:
            return self._kit.booleans(name, values)
        # Arrow's memory is not to be written to.
        return self._kit.wrap(values.copy())

    def _with_nulls(self, name: str, values: Any, valid: Any) -> Any:
        if isinstance(values, list):
            pairs = zip(values, valid.tolist(), strict=True)
            return [value if is_valid else None for value, is_valid in pairs]
        import numpy as np

        found = np.asarray(values)
        valid = np.asarray(valid)
        if found.dtype == bool:
            return self._kit.booleans(name, _nones(found, valid))
        return self._kit.wrap(np.where(valid, found.astype(np.float64), np.nan))


def _nones(values: Any, valid: Any) -> Any:
    """An array of objects, None where a value is not valid."""
    found = values.astype(object)
    found[~valid] = None
    return found


class _Kit(ABC):
    """The operations that differ between tensors and arrays."""

    wrap: Callable[[Any], Any]

    @abstractmethod
    def booleans(self, name: str, values: Any) -> Any:
        """Booleans and None."""


class _NumpyKit(_Kit):
    def __init__(self) -> None:
        self.wrap = lambda values: values

    def booleans(self, name: str, values: Any) -> Any:
        return values


class _TorchKit(_Kit):
    def __init__(self) -> None:
        import torch

        self.wrap = torch.from_numpy

    def booleans(self, name: str, values: Any) -> Any:
        raise DataError(
            f"the column {name!r} is boolean and holds a null, for which there is no tensor; leave such rows out by "
            f"filters=pyarrow.compute.field({name!r}).is_valid(), or choose what a null becomes by nulls= of "
            "tensorquery.create_dataloader"
        )


@dataclass(frozen=True)
class CompatOutput(TensorOutput):
    """How batches come out, with the values and types of torch-dataloader-utils."""

    columns: Output

    def builder(self, schema: Any) -> BatchBuilder:
        """A builder of such batches of a schema."""
        return CompatBatches(schema, self.columns)
