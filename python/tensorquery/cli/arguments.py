"""The command line in words: its arguments, and the messages for wrong ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tensorquery._core import __version__
from tensorquery._util.options import nearest_name

__all__ = ["Arguments", "UsageError", "parse"]

_EXAMPLES = """examples:
  tensorquery head "SELECT * FROM 'data/**/*.parquet'"
  tensorquery count "SELECT * FROM events WHERE price > 10" --table events=data/events
  tensorquery shards "SELECT user, price FROM events" --table events=data/events --world-size 8 --num-workers 4
  tensorquery head "SELECT * FROM t" --table t=s3://bucket/rows/ --storage-option region=eu-west-1 --format json

A --table is a file, a folder or a glob; its format follows from the file names, or is given: --table t=rows.txt:csv.
A path in single quotes is a table in SQL, too. Options of stores can also come from the environment."""

_COMMANDS = {
    "explain": "the plans: DataFusion's, what runs once, and the splits",
    "schema": "names, types and nullability of the output columns",
    "count": "the exact number of rows",
    "head": "the first rows",
    "shards": "what each rank and worker reads",
    "bench": "load an epoch or two, and say how fast that was",
}


class UsageError(Exception):
    """The call is wrong."""


@dataclass(frozen=True)
class Arguments:
    """The arguments, read and checked."""

    command: str
    sql: str
    tables: tuple[str, ...]
    storage_options: tuple[str, ...]
    format: str
    traceback: bool
    rows: int = 10
    world_size: int = 1
    num_workers: int = 0
    batch_size: int | None = None
    epochs: int = 2
    output_format: str = "torch"
    shuffle: bool = False
    analyze: bool = False


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, with the likely intention."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: ") and "--" not in message:
            message += " (is the SQL in quotes?)"
        self.exit(2, f"tensorquery: {message}; {self.prog} --help says more\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and isinstance(value, str) and value not in action.choices:
            names = list(action.choices)
            near = nearest_name(value, names)
            hint = f"; did you mean {near}?" if near else ""
            if value.lstrip().upper().startswith(("SELECT", "WITH")):
                hint = f'; a command comes before the SQL, for example: head "{value}"'
            raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(names)}{hint}")


def parse(arguments: Sequence[str]) -> Arguments:
    """Read a command line.

    Args:
        arguments: What stands behind the program's name.

    Returns:
        The parsed arguments.

    Raises:
        SystemExit: It is wrong (2), or asks for help (0); the message has been printed.
    """
    parser = _Parser(
        prog="tensorquery",
        description="A look at a SQL query over files, and at how it would be loaded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tensorquery {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, meaning in _COMMANDS.items():
        command = commands.add_parser(
            name, help=meaning, description=f"Print {meaning}.", allow_abbrev=False
        )
        _add_common(command)
        if name == "explain":
            command.add_argument(
                "--analyze", action="store_true", help="run it, and show rows and times by operator"
            )
        if name == "head":
            command.add_argument("-n", "--rows", type=_count, default=10, help="how many (10)")
        if name in ("shards", "bench"):
            _add_loading(command)
        if name == "bench":
            command.add_argument("--epochs", type=_positive, default=2, help="how many (2)")
            command.add_argument(
                "--output-format",
                choices=("torch", "numpy", "jax", "arrow", "dict"),
                default="torch",
                help="the type of batches (torch)",
            )
            command.add_argument("--shuffle", action="store_true", help="in random order")
    found = vars(parser.parse_args(list(arguments)))
    return Arguments(
        **{
            **found,
            "tables": tuple(found["tables"]),
            "storage_options": tuple(found["storage_options"]),
        }
    )


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("sql", metavar="SQL", help='one statement in quotes: "SELECT …"')
    command.add_argument(
        "-t",
        "--table",
        dest="tables",
        metavar="NAME=PATH[:FORMAT]",
        action="append",
        default=[],
        help="a table of files; repeat it for more",
    )
    command.add_argument(
        "--storage-option",
        dest="storage_options",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of object stores, as in storage_options=; repeat it for more",
    )
    command.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="the form of the output (table)",
    )
    command.add_argument(
        "--traceback", action="store_true", help="print where in the code an error comes from"
    )


def _add_loading(command: argparse.ArgumentParser) -> None:
    command.add_argument("--world-size", type=_positive, default=1, help="number of ranks (1)")
    command.add_argument(
        "--num-workers", type=_count, default=0, help="worker processes per rank (0: threads)"
    )
    command.add_argument("--batch-size", type=_positive, help="rows per batch")


def _count(text: str) -> int:
    return _at_least(text, 0)


def _positive(text: str) -> int:
    return _at_least(text, 1)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
    return number
