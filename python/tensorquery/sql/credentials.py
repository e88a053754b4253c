"""Who may read: functions of the user's that give credentials.

The compiled half calls `Credentials` from threads of its own.
"""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from tensorquery._util.pickling import calls, dumps
from tensorquery.errors import ConfigError
from tensorquery.sql.storage import plain_options

__all__ = ["CredentialProvider", "Credentials"]

CredentialProvider: TypeAlias = Callable[..., Any]
"""A callable without arguments, or with the URL of the store, that returns a dict of storage options (``key``, ``secret``,
``token``; ``sas_token``; …), and under ``expires_at`` when they end: seconds since 1970, or a datetime with a time zone."""

_MILLISECONDS_FROM = 1e11
"""No number of seconds since 1970 that anybody means: it is in the year 5138."""

_EXPIRY_NAMES = ("expires_at", "expiration", "expiry_time")


class Credentials:
    """A user's function that gives credentials.

    Args:
        provider: See `CredentialProvider`.

    Raises:
        ConfigError: It cannot be called, or needs more than the URL.
    """

    def __init__(self, provider: CredentialProvider) -> None:
        if not callable(provider):
            raise ConfigError(
                f"credential_provider must be a callable that returns a dict of options, got "
                f"{type(provider).__name__}"
            )
        self._provider = provider
        self._takes_url = _takes_url(provider)
        self.name: str = getattr(provider, "__qualname__", type(provider).__qualname__)

    def ask(self, url: str) -> str:
        """Call the function.

        Args:
            url: The store, such as ``s3://bucket/``.

        Returns:
            Options as JSON, with ``expires_at_ms`` where they end.

        Raises:
            ConfigError: It returned no options.
        """
        with calls:
            answer = self._provider(url) if self._takes_url else self._provider()
        where = f"the answer of credential_provider {self.name}"
        expires: Any = None
        if isinstance(answer, tuple) and len(answer) == 2:
            answer, expires = answer
        if not isinstance(answer, Mapping):
            raise ConfigError(
                f"{where} must be a dict of storage options with expires_at, got {type(answer).__name__}"
            )
        options: dict[str, Any] = {}
        for name, value in answer.items():
            if isinstance(name, str) and name.lower() in _EXPIRY_NAMES:
                expires = value
            elif value is not None:
                options[name] = value
        plain = plain_options(options, where)
        if any("://" in name for name in plain):
            raise ConfigError(
                f"{where} holds prefixes of URLs; take the URL as an argument instead, and return the options of "
                f"that store"
            )
        if expires is not None:
            plain["expires_at_ms"] = str(_milliseconds(expires, where))
        return json.dumps(plain)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_credentials, (dumps(self._provider, f"credential_provider {self.name}"),)

    def __repr__(self) -> str:
        return f"Credentials({self.name})"


def _takes_url(provider: CredentialProvider) -> bool:
    try:
        parameters = inspect.signature(provider).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        raise ConfigError(
            "credential_provider must take no argument, or the URL of the store alone, but needs "
            + ", ".join(parameter.name for parameter in needed)
        )
    return bool(needed)


def _milliseconds(expires: Any, where: str) -> int:
    if isinstance(expires, str):
        try:
            expires = datetime.fromisoformat(expires)
        except ValueError:
            expires = None
    if isinstance(expires, datetime):
        if expires.tzinfo is None:
            raise ConfigError(
                f"expires_at in {where} is a datetime without a time zone; use datetime.now(timezone.utc)"
            )
        return int(expires.timestamp() * 1000)
    if isinstance(expires, bool) or not isinstance(expires, (int, float)):
        raise ConfigError(
            f"expires_at in {where} must be seconds since 1970 or a datetime with a time zone"
        )
    if not 0 <= expires < _MILLISECONDS_FROM:
        raise ConfigError(f"expires_at={expires!r} in {where} must be seconds since 1970")
    return int(expires * 1000)


def _restore_credentials(pickled: bytes) -> Credentials:
    return Credentials(pickle.loads(pickled))
