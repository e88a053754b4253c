"""The exceptions of tensorquery: one root, and below it one class per cause.

Each class also derives from the built-in that Python code would expect (`ValueError`, `LookupError`,
`TypeError`, `OSError`), so that both ``except tq.ConfigError`` and ``except ValueError`` work.
Every message names the value, what was allowed and the fix.
"""

from __future__ import annotations

__all__ = [
    "CheckpointMismatchError",
    "ConfigError",
    "DataError",
    "NotShardableError",
    "QueryError",
    "StorageError",
    "TableNotFoundError",
    "TensorQueryError",
    "UnsupportedTypeError",
]


class TensorQueryError(Exception):
    """The root of all errors that tensorquery raises on purpose.

    Examples:
        >>> str(TableNotFoundError("no table 'event'; did you mean 'events'?"))
        "no table 'event'; did you mean 'events'?"
    """

    # Pickling calls cls(*args), so the message must be the only argument: a DataLoader worker sends its
    # exception to the training process as a pickle or as its text.
    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    # OSError and KeyError-like bases have their own idea of a text; ours is the message and no more.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ConfigError(TensorQueryError, ValueError):
    """An option is unknown, malformed, out of range or contradicts another one.

    Raised at construction: by `create_dataloader`, `Session`, `plan_shards`, and by the detection of
    the rank when the environment is half set.
    """


class TableNotFoundError(TensorQueryError, LookupError):
    """A query or option names a table, path or glob that does not exist or matches no file."""


class QueryError(TensorQueryError):
    """The SQL or filter is malformed, not a single read-only statement, or names unknown columns."""


class NotShardableError(QueryError):
    """The query is valid, but not row-local above one scan, so it cannot run split by split.

    With ``stage="auto"`` such a query is staged, so this comes with ``stage="never"``, or for functions such as ``now()`` where
    ranks without a process group cannot agree on a moment. The message names the operator (an aggregate, a window, a
    sort, ...) or the function, and a way out.
    """


class DataError(TensorQueryError):
    """The data contradict the query's schema, the null policy or the pinned files.

    Raised while batches are read: an unexpected null, an overflow, a corrupt or changed file. The
    message names the file, and the column where there is one.
    """


class UnsupportedTypeError(TensorQueryError, TypeError):
    """A column's Arrow type has no form in the chosen output format; names the column and the type."""


class StorageError(TensorQueryError, OSError):
    """A file system or object store could not be read: missing permission, time-out, no such bucket."""


class CheckpointMismatchError(TensorQueryError, ValueError):
    """`load_state_dict` got the state of another query, seed or file list; names what differs."""
