"""``python -m tensorquery COMMAND "SELECT …"``: a look at data without Python code.

The exit status is 0; 1 where the query or the data fail, with one line on stderr; 2 where the call is wrong.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

from tensorquery.cli.arguments import Arguments, UsageError, parse
from tensorquery.cli.tables import open_session
from tensorquery.cli.verbs import VERBS
from tensorquery.errors import ConfigError, TableNotFoundError, TensorQueryError

__all__ = ["main"]

_PROGRAM = "tensorquery"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The arguments after the program's name; None takes those of the process.

    Returns:
        The exit status.

    Raises:
        SystemExit: The arguments are wrong (2), or ask for help (0).
    """
    asked = parse(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that a terminal or a pipe cannot encode are no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            query = open_session(asked).sql(asked.sql)
            for text in VERBS[asked.command](query, asked):
                print(text, flush=True)
    except BrokenPipeError:
        # The reader has what it wants. Python must not write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (TensorQueryError, ImportError, UsageError) as error:
        if asked.traceback:
            traceback.print_exc()
        else:
            print(f"{_PROGRAM}: {_told(error, asked)}", file=sys.stderr)
        return 2 if isinstance(error, (UsageError, ConfigError)) else 1
    return 0


def _told(error: Exception, asked: Arguments) -> str:
    """An error in one line, with what to do about it here."""
    text = " ".join(str(error).split())
    if isinstance(error, TableNotFoundError) and text.startswith("unknown table"):
        return f"{text}; --table NAME=PATH registers a table"
    return text


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in one line: where in the library it comes from says nothing to who called a program."""
    print(f"{_PROGRAM}: warning: {message}", file=sys.stderr)
