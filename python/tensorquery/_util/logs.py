"""Messages of the engine in Python's ``logging``: below the logger ``tensorquery.engine``, by the Rust module that said it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from tensorquery import _core

__all__ = ["follow", "hand_over"]

_ENGINE = logging.getLogger("tensorquery.engine")
# Python prints warnings for which nobody has a handler. Engine warnings are for those who look for them: errors are
# raised, and this package itself warns about matters of the user.
_ENGINE.addHandler(logging.NullHandler())


def follow() -> None:
    """Set the engine's log levels from these loggers; called when a session is made and when an iteration begins."""
    _core.set_log_level(_ENGINE.getEffectiveLevel())


def hand_over(said: Sequence[tuple[int, str, str, float, str]], lost: int) -> None:
    """Give the records of the engine to their loggers.

    Args:
        said: Of each record its level, the module of Rust, the message, seconds since 1970 and the thread.
        lost: Records that were too many.
    """
    for level, target, message, created, thread in said:
        logger = _ENGINE.getChild(target.replace("::", "."))
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, "", 0, message, (), None)
            record.created = created
            record.msecs = created % 1 * 1000
            record.relativeCreated += (created - time.time()) * 1000
            record.threadName = thread
            logger.handle(record)
    if lost:
        _ENGINE.warning("%d more messages of the engine were lost", lost)
