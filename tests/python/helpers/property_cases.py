"""How much a test tries: little in ``make test``, more in ``make test-long``."""

import os

__all__ = ["LONG", "cases"]

LONG = bool(os.environ.get("TENSORQUERY_LONG"))


def cases(some: int) -> int:
    """So many, and three times as many in ``make test-long``."""
    return some * (3 if LONG else 1)
