"""Memory, threads, descriptors and shared memory of a process that makes loaders and reads epochs: a program of test_leaks.py.

    python tests/python/helpers/leaks.py NAME ROUNDS FOLDER

prints a line of JSON per reading: warm-up rounds come first, and are not shown.
"""

import contextlib
import ctypes
import gc
import json
import os
import sys
import time

import tensorquery as tq

READINGS = 8


def resident():
    """Bytes of memory that are this process's own, after what is free was given back."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)  # noqa: SIM115
    return int(fields["RssAnon"].split()[0]) << 10


def threads():
    """How many there are."""
    return len(os.listdir("/proc/self/task"))


def descriptors():
    """How many files are open, without the one that lists them."""
    return len(os.listdir("/proc/self/fd")) - 1


def reading():
    """All of it."""
    gc.collect()
    return {"threads": threads(), "descriptors": descriptors(), "resident": resident()}


def settled(early, seconds=25):
    """The last reading, once idle threads have had time to end: those of the blocking pool wait for ten seconds."""
    end = time.monotonic() + seconds
    while True:
        now = reading()
        if time.monotonic() > end or all(
            now[what] <= max(one[what] for one in early) for what in ("threads", "descriptors")
        ):
            return now
        time.sleep(0.5)


def loader_of(folder, **options):
    """A loader with a session of its own."""
    session = tq.Session()
    session.register_parquet("t", folder)
    options = {"rank": 0, "world_size": 1, "batch_size": 64, **options}
    return tq.create_dataloader("SELECT id, v, s FROM t WHERE id <> 7", session=session, **options)[
        0
    ]


def rows(loader):
    """Rows of an epoch."""
    return sum(len(batch["id"]) for batch in loader)


def epochs(folder, **options):
    """One loader, epoch after epoch."""
    loader = loader_of(folder, shuffle=True, **options)
    wanted = rows(loader)

    def once():
        assert rows(loader) == wanted

    return once


def creations(folder):
    """A new loader each time, which begins an epoch and is dropped."""
    kinds = [{}, {"shuffle": True}, {"shuffle": "global"}, {"remainder": "drop"}]
    numbers = iter(range(10**9))

    def once():
        for batch in loader_of(folder, **kinds[next(numbers) % len(kinds)]):
            assert len(batch["id"])
            break

    return once


def created_workers(folder):
    """A loader with processes each time, read to its end or left."""
    numbers = iter(range(10**9))

    def once():
        loader = loader_of(folder, num_workers=2, shuffle=True)
        for number, _ in enumerate(loader):
            if number == 3 and next(numbers) % 2:
                break

    return once


WORKS = {
    "epochs": epochs,
    "creations": creations,
    "persistent workers": lambda folder: epochs(folder, num_workers=2, persistent_workers=True),
    "workers": lambda folder: epochs(folder, num_workers=2),
    "created workers": created_workers,
}


def main():
    """The command line."""
    name, rounds, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    work = WORKS[name](folder)
    for _ in range(max(4, rounds // 4)):
        work()
    found = [reading()]
    for _ in range(READINGS):
        for _ in range(max(1, rounds // READINGS)):
            work()
        found.append(reading())
    found.append(settled(found[: len(found) // 2]))
    for one in found:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
