"""Processes that end with the tests, however those end.

Each is given a pipe as its standard input and ends when that pipe closes: at the end of its `with` block, and
when the test run is interrupted or killed. A program that does not watch its input is wrapped:
`python -m servers.process FOLDER OPTIONS COMMAND...` runs it, with OPTIONS of `subprocess.Popen` in JSON, sends
it SIGINT at the end of its own input, and then removes FOLDER.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

_inputs = set()


def _forget_inputs():
    for pipe in _inputs:
        pipe.close()


# A worker process that hangs must not keep the servers alive by the pipes that it inherited.
os.register_at_fork(after_in_child=_forget_inputs)


@contextlib.contextmanager
def running(command, log, *, seconds=240, **options):
    """The first line that `command` prints; the process runs until the block ends.

    Args:
        command: Program and arguments.
        log: A file for what it prints to standard error.
        seconds: How long to wait for the first line.
        **options: Of `subprocess.Popen`.

    Raises:
        RuntimeError: The process ended, or printed nothing in time; with the end of its log.
    """
    with (
        open(log, "w") as errors,
        subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # An interrupt from the terminal reaches the tests, which then stop their servers in order.
            start_new_session=True,
            **options,
        ) as process,
    ):
        _inputs.add(process.stdin)
        # A line that does not come ends the wait by ending the process.
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            line = process.stdout.readline().strip()
            timer.cancel()
            if not line:
                process.wait()
                end = Path(log).read_text()[-3000:]
                raise RuntimeError(
                    f"{command[0]} printed nothing within {seconds} s (status {process.returncode}); "
                    f"the end of its log:\n{end}"
                )
            yield line
        finally:
            timer.cancel()
            _inputs.discard(process.stdin)
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port():
    """A port of 127.0.0.1 on which nobody listens, for a server that takes no port 0.

    Not one that the system chooses: it would give the same to a connection of anybody's before the server has it.
    Connections have ports from 32768 on.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port of 127.0.0.1 from 20000 to 32767 is free")


def until(attempt, errors, *, seconds=120):
    """Return the result of `attempt()`, called again while it raises one of `errors`."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except errors:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def end_with_input():
    """End this process, from a thread, when its standard input ends."""

    def watch():
        while sys.stdin.buffer.read(4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _keep(folder, options, *command):
    try:
        return _kept(json.loads(options), command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(options, command):
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        cwd="/",
        start_new_session=True,
        **options,
    ) as child:

        def watch():
            while sys.stdin.buffer.read(4096):
                pass
            child.send_signal(signal.SIGINT)

        threading.Thread(target=watch, daemon=True).start()
        print(child.pid, flush=True)
        return child.wait()


if __name__ == "__main__":
    sys.exit(_keep(*sys.argv[1:]))
