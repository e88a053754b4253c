"""Ranks that meet without torch, each on a thread of its own."""

import threading

import tensorquery as tq
from servers.process import free_port

KINDS = ["files", "tcp"]


def address_of(kind, folder):
    return folder / "meet" if kind == "files" else f"tcp://127.0.0.1:{free_port()}"


def together(world_size, work, *, seconds=60):
    """Call ``work(rank)`` on a thread per rank; returns what each returned or raised."""
    answers = {}

    def run(rank):
        try:
            answers[rank] = work(rank)
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a rank hangs"
    return [answers[rank] for rank in range(world_size)]


def joined(kind, folder, world_size, **options):
    """The groups of ranks that met."""
    address = address_of(kind, folder)
    place = {"world_size": world_size, "timeout": 20, **options}
    found = together(world_size, lambda rank: tq.ProcessGroup(address, rank=rank, **place))
    assert all(isinstance(group, tq.ProcessGroup) for group in found), found
    return found
