"""Values of Arrow as Python's, for people to look at."""

from __future__ import annotations

from typing import Any

from tensorquery._util.arrow_c import import_pyarrow

__all__ = ["python_value"]


def python_value(cell: Any) -> Any:
    """A value as Python has it; nanoseconds and far years, which it has not, are text, also within lists and structs.

    Args:
        cell: A `pyarrow.Scalar`.

    Returns:
        What ``as_py()`` gives, where it gives all of it.
    """
    pa = import_pyarrow()
    # It silently drops nanoseconds below a microsecond.
    if isinstance(cell, pa.Time64Scalar) and cell.is_valid and cell.type.unit == "ns":
        return cell.cast("string").as_py() if cell.value % 1000 else cell.as_py()
    try:
        return cell.as_py()
    except (ValueError, OverflowError):
        pass
    if isinstance(cell, pa.StructScalar):
        return {name: python_value(cell[name]) for name in cell}
    if isinstance(cell, pa.MapScalar):
        return [tuple(map(python_value, entry.values())) for entry in cell.values]
    if isinstance(cell, pa.ListScalar):
        return [python_value(item) for item in cell.values]
    if isinstance(
        cell, (pa.DictionaryScalar, pa.ExtensionScalar, pa.RunEndEncodedScalar, pa.UnionScalar)
    ):
        return python_value(cell.value)
    return cell.cast("string").as_py()
