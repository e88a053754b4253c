"""The magic ``%%tq`` for IPython and Jupyter, and the completion of names: ``%load_ext tensorquery``.

IPython is imported when the extension is loaded, never before.
"""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from typing import Any, NoReturn

from tensorquery.errors import TensorQueryError
from tensorquery.integrations.completion import complete_in_python, complete_in_sql
from tensorquery.sql.query import Query
from tensorquery.sql.session import Session

__all__ = ["load", "unload"]

_USAGE = "%%tq [name] [--session variable], and a SELECT statement below"


class _Parser(argparse.ArgumentParser):
    """Raises where it would end the process."""

    def error(self, message: str) -> NoReturn:
        raise _usage_error(f"{message}; usage: {_USAGE}")


def _parser() -> _Parser:
    parser = _Parser(prog="%%tq", add_help=False, allow_abbrev=False)
    parser.add_argument("name", nargs="?")
    parser.add_argument("-s", "--session")
    return parser


def _usage_error(message: str) -> Exception:
    """An error that IPython shows as one line, without a traceback."""
    from IPython.core.error import UsageError

    return UsageError(message)  # type: ignore[no-any-return]


class _Magic:
    """The magic of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._own: Session | None = None

    def tq(self, line: str, cell: str | None = None) -> Query:
        """Make a query of the SQL in this cell: ``%%tq [name] [--session variable]``.

        The query is the cell's result, and is kept in the variable `name` where one is given (``%%tq name <<`` is the
        same). Nothing but its first rows runs. The session is the variable ``session``, or the only one that there is; without any, a
        session of the magic's own, for paths in single quotes: ``SELECT * FROM 'data/*.parquet'``.

        ``%tq SELECT …`` in a line does the same: ``query = %tq SELECT * FROM events``.
        """
        if cell is None:
            name, session, sql = None, None, line
            start = re.match(r"(?:-s|--session)(?:\s+|=)(\S+)\s+", line)
            if start is not None:
                session, sql = start[1], line[start.end() :]
        else:
            name, session = self._options(line)
            sql = cell
        if not sql.strip():
            raise _usage_error(f"there is no SQL; usage: {_USAGE}")
        try:
            query = self.session(session).sql(sql.strip())
        except (TensorQueryError, ImportError) as error:
            raise _usage_error(f"{type(error).__name__}: {error}") from error
        if name is not None:
            self._shell.user_ns[name] = query
        return query

    def _options(self, line: str) -> tuple[str | None, str | None]:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise _usage_error(f"{error} in {line!r}; usage: {_USAGE}") from error
        if words and words[0].upper() in ("SELECT", "WITH"):
            raise _usage_error(f"the SQL goes on the lines below %%tq; usage: {_USAGE}")
        # As jupysql writes it.
        found = _parser().parse_args(words[:-1] if words[-1:] == ["<<"] else words)
        name = found.name
        if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
            raise _usage_error(
                f"{name!r} is no name for a variable; the SQL goes below the line of %%tq; usage: {_USAGE}"
            )
        return name, found.session

    def session(self, name: str | None) -> Session:
        """The session that is meant."""
        known = self.sessions()
        if name is not None:
            if name not in known:
                what = (
                    type(self._shell.user_ns[name]).__name__
                    if name in self._shell.user_ns
                    else None
                )
                given = "is not defined" if what is None else f"is a {what}"
                raise _usage_error(
                    f"--session {name}: this must be a variable with a tensorquery.Session, and {name} {given}; "
                    f"sessions are {', '.join(sorted(known)) or 'none'}"
                )
            return known[name]
        if "session" in known:
            return known["session"]
        different = {id(session): session for session in known.values()}
        if len(different) > 1:
            raise _usage_error(
                f"there are several sessions ({', '.join(sorted(known))}); say which one: %%tq --session "
                f"{min(known)}"
            )
        if different:
            return next(iter(different.values()))
        if self._own is None:
            self._own = Session()
        return self._own

    def sessions(self) -> dict[str, Session]:
        """The user's sessions, by variable."""
        return {
            name: value
            for name, value in self._shell.user_ns.items()
            if isinstance(value, Session) and not name.startswith("_")
        }

    def complete(self, context: Any) -> dict[str, Any]:
        """Names of tables and columns at the cursor: a matcher of IPython's completer."""
        from IPython.core.completer import SimpleCompletion

        lines = context.full_text.split("\n")[: context.cursor_line + 1]
        before = "\n".join([*lines[:-1], lines[-1][: context.cursor_position]])
        fragment, names = self._names(before, context.full_text)
        return {
            "completions": [SimpleCompletion(text=name, type=kind) for name, kind in names],
            "matched_fragment": fragment,
            # In SQL there are no names of Python.
            "suppress": bool(names),
        }

    def _names(self, before: str, text: str) -> tuple[str, list[tuple[str, str]]]:
        from IPython.core.error import UsageError

        magic = re.match(r"\s*%%tq\b([^\n]*)\n", text)
        line = re.search(r"%tq\s+([^\n]*)$", before)
        if magic is None and line is None:
            return complete_in_python(before, self._shell.user_ns)
        try:
            if magic is not None:
                if "\n" not in before.lstrip():
                    return "", []
                session = self.session(self._options(magic[1])[1])
            else:
                session = self.session(None)
        except UsageError:
            # The line's error is shown when it runs; here there is nothing to complete.
            return "", []
        sql = text[magic.end() :] if magic is not None else before
        return complete_in_sql(before, sql, session)


_LOADED = "_tensorquery_magic"


def load(shell: Any) -> None:
    """Give a shell the magic and the completion.

    Args:
        shell: The shell of IPython.
    """
    from IPython.core.completer import context_matcher

    if getattr(shell, _LOADED, None) is not None:
        return
    magic = _Magic(shell)

    @context_matcher(identifier="tensorquery")  # type: ignore[untyped-decorator]
    def matcher(context: Any) -> dict[str, Any]:
        return magic.complete(context)

    def tq(line: str, cell: str | None = None) -> Query:
        return magic.tq(line, cell)

    tq.__doc__ = _Magic.tq.__doc__
    # Braces and dollars belong to SQL here.
    tq._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]
    shell.register_magic_function(tq, magic_kind="line_cell", magic_name="tq")
    shell.Completer.custom_matchers.append(matcher)
    setattr(shell, _LOADED, matcher)


def unload(shell: Any) -> None:
    """Take them away again.

    Args:
        shell: The shell of IPython.
    """
    matcher = getattr(shell, _LOADED, None)
    if matcher is None:
        return
    shell.Completer.custom_matchers.remove(matcher)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tq", None)
    delattr(shell, _LOADED)
