"""How many random cases a property test tries."""

import os

__all__ = ["cases"]


def cases(some: int) -> int:
    """So many, and three times as many in ``make test-long``."""
    return some * (3 if os.environ.get("TENSORQUERY_LONG_EXAMPLES") else 1)
