"""Reads an Arrow schema through the C data interface, without pyarrow.

The interface is a stable ABI (https://arrow.apache.org/docs/format/CDataInterface.html). It is read here for
two reasons: any library's schema will do, and it keeps schema metadata as a list, while pyarrow hands out a
dict and so loses repeated keys.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

__all__ = ["Field", "read_schema"]


@dataclass(frozen=True)
class Field:
    """One field of a schema, or the schema itself.

    Attributes:
        name: The column's name; "" for a schema.
        format: The type as the C data interface spells it: "l" is int64, "tsu:UTC" a timestamp, ...;
            for a dictionary-encoded column the format of its values.
        children: The fields of a struct or schema, or the item of a list.
        metadata: Key and value pairs in their order, repeated keys included.
    """

    name: str
    format: str
    children: tuple[Field, ...] = ()
    metadata: tuple[tuple[bytes, bytes], ...] = ()

    def child(self, name: str) -> Field | None:
        """The first child called `name`, or None."""
        return next((child for child in self.children if child.name == name), None)


class _ArrowSchema(ctypes.Structure):
    pass


_ArrowSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    # A pointer and not a string: the metadata hold zero bytes.
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowSchema))),
    ("dictionary", ctypes.POINTER(_ArrowSchema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def read_schema(source: Any) -> Field:
    """Copy a schema, or a type, out of anything with `__arrow_c_schema__`.

    Args:
        source: A `pyarrow.Schema` or `DataType`, a schema of ours, or another library's.

    Returns:
        The schema as a field whose children are the columns.
    """
    # The capsule owns the structure and releases it; everything is copied while it is alive.
    capsule = source.__arrow_c_schema__()
    return _copy(_ArrowSchema.from_address(_pointer_of(capsule, b"arrow_schema")))


def _copy(schema: _ArrowSchema) -> Field:
    # The values' type is what a predicate on a dictionary-encoded column sees.
    typed = schema.dictionary.contents if schema.dictionary else schema
    return Field(
        name=(schema.name or b"").decode(),
        format=typed.format.decode(),
        children=tuple(_copy(typed.children[i].contents) for i in range(typed.n_children)),
        metadata=_metadata(schema.metadata),
    )


def _metadata(address: int | None) -> tuple[tuple[bytes, bytes], ...]:
    """Decode a count, and for each pair: length, key, length, value; integers of 32 bits, native order."""
    if not address:
        return ()

    def read_int() -> int:
        nonlocal address
        (number,) = struct.unpack("=i", ctypes.string_at(address, 4))
        address += 4
        return int(number)

    def read_bytes() -> bytes:
        nonlocal address
        length = read_int()
        text = ctypes.string_at(address, length)
        address += length
        return text

    return tuple((read_bytes(), read_bytes()) for _ in range(read_int()))


def import_pyarrow() -> Any:
    """The module pyarrow, which exploring needs and training does not.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("this needs pyarrow: pip install pyarrow") from error
    return pyarrow
