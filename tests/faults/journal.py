"""The journal of a rank that trains. It outlives a SIGKILL: each record is one write, appended to a file.

A torn record at the end counts as not written; nothing follows it.
"""

import json
import os
import struct
from dataclasses import dataclass, field

import numpy as np

_HEAD = struct.Struct("<cqq")
_OPENED, _FIRST, _BATCH, _STATE, _END = b"O", b"F", b"B", b"S", b"E"


class Journal:
    """The writing side, in the rank."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def opened(self, **facts):
        """The loader is there."""
        self._write(_OPENED, 0, json.dumps(facts).encode())

    def first(self, seconds):
        """The first batch was received after the state was loaded and so many seconds of CPU."""
        self._write(_FIRST, 0, json.dumps(seconds).encode())

    def batch(self, step, ids):
        """A batch of these ids was received."""
        self._write(_BATCH, step, ids.tobytes())

    def state(self, step, state):
        """This is the loader's state after `step` rounds of all ranks."""
        self._write(_STATE, step, json.dumps(state).encode())

    def end(self, **outcome):
        """The rank has come to an end by itself."""
        self._write(_END, 0, json.dumps(outcome).encode())

    def _write(self, kind, step, payload):
        data = _HEAD.pack(kind, step, len(payload)) + payload
        if os.write(self._file, data) != len(data):
            raise OSError(f"the disk of the harness is full: {len(data)} bytes were not written")


@dataclass
class Told:
    """The contents of a journal.

    Attributes:
        opened: Facts of the loader; None where the rank did not come so far.
        first: Seconds of CPU until the first batch; None where there was none.
        batches: Ids by step.
        states: States by step, as JSON text.
        outcome: How the rank ended; None where it was killed.
    """

    opened: dict | None = None
    first: float | None = None
    batches: dict[int, np.ndarray] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    outcome: dict | None = None

    def rows(self):
        """Rows received."""
        return sum(map(len, self.batches.values()))

    def rows_until(self, step):
        """The ids of the batches up to `step`."""
        return [ids for at, ids in self.batches.items() if at <= step]


def read(path):
    """Read a journal, as far as it was written."""
    told = Told()
    if not path.exists():
        return told
    data = path.read_bytes()
    at = 0
    while at + _HEAD.size <= len(data):
        kind, step, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        payload = data[at : at + length]
        at += length
        if len(payload) < length:
            break
        match kind:
            case b"O":
                told.opened = json.loads(payload)
            case b"F":
                told.first = json.loads(payload)
            case b"B":
                told.batches[step] = np.frombuffer(payload, np.int64)
            case b"S":
                told.states[step] = payload.decode()
            case b"E":
                told.outcome = json.loads(payload)
    return told
