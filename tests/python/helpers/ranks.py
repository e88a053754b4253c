"""Real training processes for tests: a function run once per rank, in a process of its own."""

import contextlib
import multiprocessing
import os
import pickle
import queue
import traceback

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
    # Forked from a process that has imported torch already (see conftest.py).
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    leave = context.Event()
    port = free_port()
    # Not yet an object there: what it imports may read variables.
    call = pickle.dumps((function, arguments))
    processes = []
    for rank in range(world_size):
        variables = {**os.environ, **_variables(rank, world_size, port)}
        process = context.Process(target=_rank, args=(call, variables, answers, leave))
        process.start()
        processes.append(process)
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


def _rank(call, variables, answers, leave):
    os.environ.clear()
    os.environ.update(variables)
    # As it would be by the variable, had it been there when torch was imported: ranks that have all cores each spend
    # their time waiting for one another.
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))
    rank, world_size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    try:
        function, arguments = pickle.loads(call)
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
