"""Out of memory: a process may get no more than it has, and something in it takes all that was left.

A limit alone would not be met: a loader that runs gets along with the memory that it has had.
"""

import ctypes
import os
import resource
import threading
import time

_M_ARENA_MAX = -8
_MOST_BYTES = 4 << 30


def share_one_heap():
    """Before there are threads: what one thread takes, the others lack."""
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def starve_if_told(hungry):
    """Take all memory, where the harness has told this process to, and limited it."""
    if hungry[0] != os.getpid():
        return
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    taken = 0
    for size in (1 << 20, 1 << 16, 1 << 12, 1 << 8):
        # Never touched: it costs the machine nothing.
        while taken < _MOST_BYTES and malloc(size):
            taken += size


def wait_to_starve(hungry):
    """Do so as soon as it is told, in a thread of a worker."""

    def wait():
        while not hungry[0]:
            time.sleep(0.002)
        starve_if_told(hungry)

    threading.Thread(target=wait, daemon=True).start()


def feed():
    """Lift the limit, so that a process can say why it ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
