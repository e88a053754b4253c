"""Batches as JAX arrays: NumPy arrays that are put on devices, one batch ahead of the loop.

JAX is imported when a placement is made, and never in a worker process: those send NumPy arrays.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tensorquery.distributed.topology import Topology
from tensorquery.errors import ConfigError, DataError

__all__ = ["Placement", "checked_sharding", "import_jax"]

_NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32"}
"""What JAX makes of 64 bits, unless `jax_enable_x64` is on."""


def import_jax() -> ModuleType:
    """JAX, for what asks for its arrays.

    Raises:
        ImportError: It is not installed; says how to install it.
    """
    try:
        return importlib.import_module("jax")
    except ImportError as error:
        raise ImportError(
            f'output_format="jax" needs JAX, which cannot be imported ({error}): pip install jax (on a GPU '
            "'jax[cuda13]'), or choose output_format=\"numpy\"",
            name="jax",
        ) from error


def checked_sharding(sharding: Any, output_format: str) -> Placement | None:
    """The placement of batches; None where they are no JAX arrays.

    Raises:
        ConfigError: `sharding` is none, goes with another format, or divides more than rows.
        ImportError: JAX is not installed.
    """
    if output_format == "jax":
        return Placement(sharding)
    if sharding is not None:
        raise ConfigError(
            f'sharding= goes with output_format="jax", not with {output_format!r}; leave it out, or choose "jax"'
        )
    return None


class Placement:
    """Puts the arrays of a batch on devices; called with a batch, it begins to copy.

    Args:
        sharding: A ``jax.sharding.NamedSharding`` that divides the first axis, or one of whole arrays; None: JAX's default
            device.

    Attributes:
        place: The rank and world size of this process among those that hold different rows; None where the sharding says
            nothing of other processes.
        pieces: Into how many pieces the rows of this process are divided.

    Raises:
        ConfigError: It is no such sharding, or none of its devices belongs to this process.
    """

    def __init__(self, sharding: Any = None) -> None:
        jax = self._jax = import_jax()
        self._sharding = sharding
        self.place: tuple[int, int] | None = None
        self.pieces = 1
        self._is_wide = bool(jax.config.jax_enable_x64)
        if sharding is None:
            return
        if not isinstance(sharding, jax.sharding.Sharding):
            raise ConfigError(
                f"sharding={sharding!r} must be a jax.sharding.Sharding, such as "
                'NamedSharding(mesh, PartitionSpec("data")), or SingleDeviceSharding(device)'
            )
        pieces, axes = 1, self._row_axes()
        if axes:
            pieces = math.prod(sharding.mesh.shape[axis] for axis in axes)
            # One axis long, so that it fits arrays of any shape.
            rows = jax.sharding.PartitionSpec(axes)
            self._sharding = sharding = jax.sharding.NamedSharding(
                sharding.mesh, rows, memory_kind=sharding.memory_kind
            )
        by_process: dict[int, set[int]] = {}
        for device, index in sharding.devices_indices_map((pieces,)).items():
            held = range(pieces)[index[0]]
            by_process.setdefault(device.process_index, set()).update(held)
        mine = by_process.get(jax.process_index())
        if mine is None:
            raise ConfigError(
                f"none of the devices of sharding= belongs to this process (jax.process_index() is {jax.process_index()}); "
                "make the loader only in processes of the mesh"
            )
        distinct = sorted({tuple(sorted(held)) for held in by_process.values()})
        if sum(map(len, distinct)) != pieces or len({len(held) for held in distinct}) > 1:
            raise ConfigError(
                "sharding= gives some rows to several processes, each with other rows besides; lay the mesh out so that two "
                "processes hold either the same rows or none in common"
            )
        self.pieces = len(mine)
        if len(by_process) > 1:
            self.place = distinct.index(tuple(sorted(mine))), len(distinct)

    def _row_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that divide rows."""
        spec = getattr(self._sharding, "spec", None)
        if spec is None:
            if self._sharding.is_fully_replicated:
                return ()
            raise ConfigError(
                f"sharding={self._sharding!r} must be a jax.sharding.NamedSharding, or one of a single device"
            )
        if any(axis is not None for axis in spec[1:]):
            raise ConfigError(
                f"sharding= with {spec} divides more than the rows; name mesh axes for the first axis alone, "
                'such as PartitionSpec("data"), and divide other axes in the jitted function'
            )
        first = spec[0] if len(spec) else None
        return () if first is None else first if isinstance(first, tuple) else (first,)

    @property
    def is_divided(self) -> bool:
        """Whether the rows of a step lie on several devices."""
        return self.pieces > 1 or (self.place is not None and self.place[1] > 1)

    def check(
        self, topology: Topology, batch_size: int, remainder: str, jagged: list[str], packs: bool
    ) -> None:
        """Check that this process delivers the rows that its devices hold, and that each batch can be divided.

        Args:
            topology: The place of this process.
            batch_size: Rows per batch.
            remainder: What happens to the rows that batches do not divide.
            jagged: Columns that come with lists of different lengths.
            packs: Whether batches are packed, or made by tokens.

        Raises:
            ConfigError: It has another rank or world size, or a batch cannot be divided; says what to change.
        """
        if self.place is not None and self.place != (topology.rank, topology.world_size):
            rank, size = self.place
            raise ConfigError(
                f"rank={topology.rank}, world_size={topology.world_size} contradict sharding=, by whose mesh this process has the "
                f"rows of rank {rank} of {size}; leave both out"
            )
        if not self.is_divided:
            return
        if packs:
            raise ConfigError(
                "pack= and batch_tokens= make arrays that have no row for each row of a batch, which sharding= cannot divide; "
                "leave sharding= out, and place the arrays in the training loop"
            )
        if batch_size % self.pieces:
            raise ConfigError(
                f"batch_size={batch_size} rows cannot be shared equally by {self.pieces} pieces of sharding= in this process; "
                f"choose a multiple, such as {-(-batch_size // self.pieces) * self.pieces}"
            )
        if remainder not in ("drop", "pad"):
            raise ConfigError(
                f"remainder={remainder!r} may end with a short batch, which the devices of sharding= cannot share equally; give "
                'remainder="drop", which leaves out the last rows, or "pad", which repeats some'
            )
        if jagged:
            raise ConfigError(
                f"{', '.join(map(repr, jagged))}: lists of different lengths cannot be divided by rows, as sharding= wants; "
                f"fill them to one length: pad={{{jagged[0]!r}: 0}}"
            )

    def __call__(self, batch: Any) -> Callable[[], Any]:
        """Begin to copy the arrays of a batch; what is returned gives it, and JAX waits where it is used."""
        placed = self._placed("", batch)
        return lambda: placed

    def _placed(self, name: str, found: Any) -> Any:
        if isinstance(found, np.ndarray):
            return self._put(name, found)
        if isinstance(found, Mapping):
            return {key: self._placed(f"{name}[{key!r}]", value) for key, value in found.items()}
        if isinstance(found, tuple) and hasattr(found, "_fields"):
            fields = zip(found._fields, found, strict=True)
            return type(found)(*(self._placed(f"{name}.{key}", value) for key, value in fields))
        if isinstance(found, list | tuple) and any(isinstance(each, np.ndarray) for each in found):
            kind: Any = type(found)
            return kind(self._placed(f"{name}[{at}]", value) for at, value in enumerate(found))
        return found

    def _put(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        kind = array.dtype.kind
        if kind not in "biufc" and array.dtype.type.__module__ != "ml_dtypes":
            # Texts and objects stay where they are.
            return array
        if not self._is_wide:
            array = _narrowed(name, array)
        if self._sharding is None or not array.ndim:
            return self._jax.device_put(array)
        if len(array) % self.pieces:
            raise DataError(
                f"batch{name} has shape {array.shape}, and the {self.pieces} pieces of sharding= cannot share its first axis "
                "equally; let transform return arrays with a row for each row of the batch"
            )
        if self._sharding.is_fully_addressable:
            return self._jax.device_put(array, self._sharding)
        return self._jax.make_array_from_process_local_data(self._sharding, array)


def _narrowed(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array as JAX holds it with 32 bits; JAX alone would cut values off without a word.

    Raises:
        DataError: A value does not fit.
    """
    wanted = _NARROW.get(array.dtype.name)
    if wanted is None:
        return array
    if wanted == "float32":
        with np.errstate(over="ignore"):
            found = array.astype(wanted)
        outside = np.isinf(found) & np.isfinite(array)
    else:
        bounds = np.iinfo(wanted)
        found = array.astype(wanted)
        outside = (array < bounds.min) | (array > bounds.max)
    if outside.any():
        value = array[outside].reshape(-1)[0]
        raise DataError(
            f"batch{name} has the value {value!s}, which {wanted} does not hold, and JAX has no {array.dtype} unless "
            'jax.config.update("jax_enable_x64", True) was called; call that before the loader is made, or cast the column '
            "in SQL (hash64(x, 0, 1000000) makes small ids)"
        )
    return found
