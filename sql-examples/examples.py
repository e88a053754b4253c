"""Runs the SQL examples as their headers say: which tables they read, and the loader that makes tensors of them.

Run it as ``python sql-examples/examples.py [name …]``, for example with ``09``; without a name it runs all of them.
Missing data is written to ``.demo`` and ``.tpch`` first.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import flights
import tpch

import tensorquery as tq

HERE = Path(__file__).parent
FLIGHTS, TPCH = Path(".demo"), Path(".tpch")


class Example(NamedTuple):
    """One file: its SQL and what its header says."""

    name: str
    """The file's name without its ending."""
    sql: str
    """The whole file; the header is a comment."""
    tables: list[str]
    """The registered tables that it reads."""
    options: dict[str, Any]
    """Keywords of `create_dataloader`."""
    is_staged: bool
    """Whether a part of it runs once, before the first batch."""


def read(path: Path) -> Example:
    """Read one example.

    Args:
        path: A ``.sql`` file whose header has the lines ``Tables:``, ``Loader:`` and ``Staged:``.

    Returns:
        The example.

    Raises:
        ValueError: A line is missing, or the loader call is not one of literals.
    """
    sql = path.read_text()
    tables = re.findall(r"\w+(?=,|$)", re.sub(r" \(.*|;.*", "", header(path, sql, "Tables")))
    call = ast.parse(header(path, sql, "Loader"), mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "tq.create_dataloader":
        raise ValueError(f"{path}: the loader must be tq.create_dataloader(query, …)")
    if [ast.unparse(argument) for argument in call.args] != ["query"]:
        raise ValueError(f"{path}: the loader's one positional argument must be query")
    options = {str(keyword.arg): value(keyword.value) for keyword in call.keywords}
    is_staged = not header(path, sql, "Staged").startswith("nothing")
    return Example(path.stem, sql, [name for name in tables if name != "none"], options, is_staged)


def value(node: ast.expr) -> Any:
    """Return the value of an option: a literal, or ``tq.Windows`` of literals."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "tq.Windows" and not node.args:
        return tq.Windows(**{str(each.arg): ast.literal_eval(each.value) for each in node.keywords})
    return ast.literal_eval(node)


def header(path: Path, sql: str, key: str) -> str:
    """Return the value of this key's line in the header."""
    found = re.findall(rf"^-- {key}: (.+)$", sql, flags=re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f'{path}: the header must have one line "-- {key}: …", not {len(found)}')
    return found[0]


def session(flights_folder: Path = FLIGHTS, tpch_folder: Path = TPCH) -> tq.Session:
    """Write what is missing of the data, and register all tables.

    Args:
        flights_folder: Where the tables of `flights` lie.
        tpch_folder: Where those of `tpch` lie.

    Returns:
        A session that knows every table of the examples.
    """
    flights.write(flights_folder)
    tpch.write(tpch_folder)
    made = tq.Session()
    for folder, names in ((flights_folder, flights.TYPES), (tpch_folder, tpch.TABLES)):
        for name in names:
            made.register_parquet(name, folder / name)
    return made


def show(value: Any) -> str:
    """The shape and type of one column of a batch."""
    if isinstance(value, list):
        return f"{len(value)} x {type(value[0]).__name__}"
    if getattr(value, "is_nested", False):
        return f"{len(value)} sequences, {value.dtype}"
    return f"{tuple(value.shape)} {value.dtype}"


def main(names: list[str]) -> None:
    """Run the examples whose names begin with one of `names`, and print their first batches."""
    tables = session()
    for path in sorted(HERE.glob("*.sql")):
        if names and not path.name.startswith(tuple(names)):
            continue
        example = read(path)
        loader, dataset = tq.create_dataloader(tables.sql(example.sql), **example.options)
        batch = next(iter(loader))
        print(f"{example.name}: {dataset.num_rows} rows, {len(loader)} batches")
        for column, value in batch.items():
            print(f"    {column}: {show(value)}")


if __name__ == "__main__":
    main(sys.argv[1:])
