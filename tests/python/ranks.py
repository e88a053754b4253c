"""Real training processes for tests: a function run once per rank, in a spawned process of its own."""

import contextlib
import multiprocessing
import os
import queue
import traceback
from unittest import mock

import torch

from servers.process import free_port

TIMEOUT = 480
"""Seconds until a rank that has not answered counts as hanging."""


def run(function, world_size, *arguments):
    """Call ``function(rank, world_size, *arguments)`` in `world_size` processes at once.

    The processes find each other by the variables that torchrun would set. A rank that fails, dies or
    hangs fails the caller, and the others are ended.

    Returns:
        What each rank returned, in the order of the ranks.
    """
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    leave = context.Event()
    port = free_port()
    processes = [
        context.Process(
            target=_rank, args=(function, rank, world_size, answers, arguments, leave), daemon=False
        )
        for rank in range(world_size)
    ]
    for rank, process in enumerate(processes):
        # Before it starts: libraries read some of these when they are imported, and ranks that have all cores
        # each spend their time waiting for one another.
        with mock.patch.dict(os.environ, _variables(rank, world_size, port)):
            process.start()
    try:
        found = {}
        for _ in processes:
            rank, result, error = _next_answer(answers, processes)
            assert error is None, f"rank {rank} of {world_size} failed:\n{error}"
            found[rank] = result
        leave.set()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0, f"a rank ended with status {process.exitcode}"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [found[rank] for rank in range(world_size)]


def _next_answer(answers, processes):
    for _ in range(TIMEOUT):
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=1)
        dead = [process.exitcode for process in processes if process.exitcode not in (None, 0)]
        assert not dead, f"ranks ended with status {dead} and without an answer"
    raise AssertionError(f"no rank answered within {TIMEOUT} seconds: it hangs")


def _variables(rank, world_size, port):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _rank(function, rank, world_size, answers, arguments, leave):
    try:
        result, error = function(rank, world_size, *arguments), None
    except BaseException:
        result, error = None, traceback.format_exc()
    answers.put((rank, result, error))
    answers.close()
    answers.join_thread()
    # The first rank serves the store that the others may still ask.
    leave.wait(TIMEOUT)
    # Not after a failure: the others may still wait in a collective.
    if error is None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    # Without the interpreter's own end, in which threads of gloo that still hold tensors abort the process now and
    # then ("terminate called without an active exception"), whatever the program did.
    os._exit(0 if error is None else 1)
