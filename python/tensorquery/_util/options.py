"""Checks of option values, so that a bad one fails at construction with the value, the bound and the fix."""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from typing import Any

from tensorquery.errors import ConfigError

__all__ = [
    "MOST_BATCH_ROWS",
    "MOST_EPOCHS",
    "MOST_PADDED",
    "MOST_PREFETCHED",
    "MOST_SAMPLES",
    "MOST_SHARDS",
    "check_bool",
    "check_callable",
    "check_choice",
    "check_non_negative_int",
    "check_positive_int",
    "check_seconds",
    "check_shards",
    "check_text",
    "expanded_path",
    "nearest_name",
    "parse_bytes",
    "reject_unknown",
]

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_SIZE_HELP = (
    "a positive integer of bytes or a string of a number and one of B, kB, MB, GB, TB (powers of 1000) "
    'or KiB, MiB, GiB, TiB (powers of 1024), for example 134217728 or "128MiB"'
)
# Sizes travel to Rust as a signed 64-bit integer.
_MAX_INT = 2**63 - 1
# Words of torch's DataLoader, and what stands for them here.
_OTHERWISE = {
    "drop_last": 'write remainder="drop"',
    "seed": "write shuffle_seed=",
    "sampler": "write shuffle=, or sample_weight= for rows that are drawn by weight",
    "batch_sampler": "write batch_size=",
    "dataset": "the query is the data: pass it first",
    "num_workers": "worker processes belong to the DataLoader around it, or to create_dataloader",
}

# Counts that every process keeps numbers for are bounded, so that an absurd option is an error and takes no memory.
MOST_SHARDS = 2**20
"""Ranks of a world, times workers of a rank; and partitions."""
MOST_BATCH_ROWS = 2**40
"""Rows of a batch; the core reads no state with more."""
MOST_SAMPLES = 2**36
"""Rows that are drawn by weight in an epoch."""
MOST_PADDED = 2**24
"""Rows of a batch that is filled up where rows run out."""
MOST_PREFETCHED = 2**16
"""Blocks that a worker sends ahead: torch asks for each of them before the first arrives."""
MOST_EPOCHS = 2**62
"""The last epoch; there are numbers for all that follow it in one run."""


def parse_bytes(value: int | str, name: str = "split_bytes") -> int:
    """Turn a size as a user writes it into bytes.

    Args:
        value: Bytes as an int, or a string such as "128MiB", "1.5 GiB", "500kB" or "4096"; the case of
            the unit does not matter.
        name: The option's name, for the error.

    Returns:
        The size in bytes, at least 1; a fraction of a byte is cut off.

    Raises:
        ConfigError: The value is malformed, zero, negative, a bool, or beyond 64 bits.

    >>> parse_bytes("128MiB")
    134217728
    >>> parse_bytes("1.5kB")
    1500
    """
    size = _size_of(value)
    if size is None:
        raise ConfigError(f"{name}={value!r} is not a size; expected {_SIZE_HELP}")
    if not 1 <= size <= _MAX_INT:
        raise ConfigError(
            f"{name}={value!r} is {size} bytes, but must be in 1..={_MAX_INT}; expected {_SIZE_HELP}"
        )
    return size


def _size_of(value: object) -> int | None:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        factor = _UNITS.get(match["unit"].upper()) if match else None
        if match is None or factor is None:
            return None
        # A fraction, because a float has too few digits for large sizes.
        return int(Fraction(match["number"]) * factor)
    return _as_int(value)


def _as_int(value: object) -> int | None:
    """The value as an int where it is one (numpy's integers too), but no bool and no float."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that a user most likely meant by `name`, or None where none is close.

    >>> nearest_name("bach_size", ["batch_size", "shuffle"])
    'batch_size'
    >>> nearest_name("Origin", ["origin", "dest"])
    'origin'
    """
    by_folded = {candidate.casefold(): candidate for candidate in names}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def reject_unknown(kwargs: Iterable[str], allowed: Collection[str], where: str) -> None:
    """Refuse keywords that nobody reads.

    Args:
        kwargs: The keywords given (a dict of them will do).
        allowed: All keywords that exist.
        where: Who was called, for the error, such as "create_dataloader".

    Raises:
        ConfigError: A keyword is unknown; names it, and the likely intention or all allowed keywords.
    """
    for name in kwargs:
        if name not in allowed:
            raise ConfigError(f"{where} has no option {name!r}{_meant(name, allowed)}")


def _meant(name: str, allowed: Collection[str]) -> str:
    if name in _OTHERWISE:
        return f"; {_OTHERWISE[name]}"
    nearest = nearest_name(name, allowed)
    if nearest:
        return f"; did you mean {nearest!r}?"
    return f" (allowed: {', '.join(sorted(allowed))})"


def check_positive_int(name: str, value: object, most: int = _MAX_INT) -> int:
    """Return `value` as an int where it is a whole number in 1..=most, else raise `ConfigError`."""
    return _check_int(name, value, minimum=1, most=most)


def check_non_negative_int(name: str, value: object, most: int = _MAX_INT) -> int:
    """Return `value` as an int where it is a whole number in 0..=most, else raise `ConfigError`."""
    return _check_int(name, value, minimum=0, most=most)


def check_shards(world_size: int, num_workers: int) -> None:
    """Refuse more shards than any job has: every process keeps the contents of each."""
    if world_size * max(1, num_workers) > MOST_SHARDS:
        raise ConfigError(
            f"world_size={world_size} with num_workers={num_workers} makes {world_size * max(1, num_workers)} shards; "
            f"there must be at most {MOST_SHARDS}"
        )


def check_text(what: str, value: str) -> str:
    """Return `value` where it is text of UTF-8, else raise `ConfigError`.

    Python stands for bytes of a file name that are no UTF-8 by surrogates, which no other program knows.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        shown = value[max(0, error.start - 20) : error.end + 20]
        raise ConfigError(
            f"{what} is not UTF-8 text: …{shown!r}…; rename a file whose name is not UTF-8"
        ) from error
    return value


def expanded_path(path: str | os.PathLike[str]) -> str:
    """A path as text, with the folder of the user where it begins with ``~``; a URL unchanged.

    >>> expanded_path("s3://bucket/~"), expanded_path("data/~")
    ('s3://bucket/~', 'data/~')
    """
    # A Path would lose the slash at the end, and is an error without a home.
    return os.path.expanduser(os.fsdecode(path))  # noqa: PTH111


def _check_int(name: str, value: object, minimum: int, most: int) -> int:
    number = _as_int(value)
    if number is None or number < minimum:
        hint = ""
        if isinstance(value, float) and math.isfinite(value) and value == int(value) >= minimum:
            hint = f"; write {int(value)} without a fraction"
        raise ConfigError(f"{name}={value!r} must be an integer of at least {minimum}{hint}")
    if number > most:
        raise ConfigError(f"{name}={number} must be at most {most}")
    return number


def check_seconds(name: str, value: object) -> float:
    """Return `value` where it is a number of seconds above 0.

    Raises:
        ConfigError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name}={value!r} must be a number of seconds above 0")
    return float(value)


def check_bool(name: str, value: object) -> bool:
    """Return `value` where it is True or False, else raise `ConfigError`."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be True or False")
    return value


def check_choice(name: str, value: object, choices: Collection[str]) -> str:
    """Return `value` where it is one of `choices`, else raise `ConfigError` with the nearest one."""
    if isinstance(value, str) and value in choices:
        return value
    nearest = nearest_name(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    allowed = ", ".join(repr(choice) for choice in choices)
    raise ConfigError(f"{name}={value!r} must be one of {allowed}{hint}")


def check_callable(name: str, value: Any) -> Callable[..., Any] | None:
    """Return `value` where it is None or can be called, else raise `ConfigError`."""
    if value is not None and not callable(value):
        raise ConfigError(
            f"{name}={value!r} is a {type(value).__name__} and cannot be called; give a function or None"
        )
    return value  # type: ignore[no-any-return]
