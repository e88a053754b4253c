"""How much a test tries: little in ``make test``, more in ``make test-long``."""

import os

__all__ = ["LONG", "METHODS", "cases"]

LONG = bool(os.environ.get("TENSORQUERY_LONG"))

METHODS = ["fork", "forkserver", *["spawn"] * LONG]
"""How worker processes are started. Both others than `fork` send them all that they need; spawned ones import torch besides,
for some seconds each."""


def cases(some: int) -> int:
    """So many, and six times as many in ``make test-long``."""
    return some * (6 if LONG else 1)
