"""Proof by injected faults that an epoch delivers each row once; see README.md in this folder."""

import sys
from pathlib import Path

# The servers and helpers of the other tests.
_HELPERS = str(Path(__file__).resolve().parents[1] / "python" / "helpers")
if _HELPERS not in sys.path:
    sys.path.insert(0, _HELPERS)
