"""Runs many files in worker processes: a query that kills its process or does not end costs only itself."""

import multiprocessing
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from .run_file import FileRun, Outcome

_START_SECONDS = 180
"""For a process to import the loader and torch, on a machine with other work."""

_STARTS = 30
"""Of one file, at most: queries that end their process are left out one by one."""


def _work(pipe, options):
    """A worker: files come through the pipe, and what happens goes back. It ends with the runner."""
    try:
        while True:
            path, skip = pipe.recv()
            notes = FileRun(Path(path), options, pipe.send, frozenset(skip)).run()
            pipe.send(("end", notes))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


@dataclass
class _Lane:
    """A worker process, and what it is doing."""

    options: object
    process: object = None
    pipe: object = None
    path: str | None = None
    at: tuple | None = None
    since: float = 0
    outcomes: list = field(default_factory=list)

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, self.options), daemon=True)
        self.process.start()
        theirs.close()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None

    def give(self, path, skip):
        if self.process is None:
            self.start()
        self.path, self.at, self.outcomes = path, None, []
        self.since = time.monotonic()
        self.pipe.send((path, sorted(skip)))


def run(files, options, jobs, tell):
    """Run files, and tell what became of each.

    Args:
        files: Paths.
        options: See `run_file.Options`.
        jobs: Worker processes.
        tell: Called with (path, outcomes, notes) when a file is through.
    """
    waiting = [(str(path), frozenset(), [], 0) for path in files]
    waiting.reverse()
    lanes = [_Lane(options) for _ in range(max(1, min(jobs, len(waiting))))]
    state = {}
    try:
        while waiting or state:
            for lane in lanes:
                if lane.path is None and waiting:
                    task = waiting.pop()
                    state[id(lane)] = task
                    lane.give(task[0], task[1])
            busy = {lane.pipe: lane for lane in lanes if lane.path is not None}
            for pipe in wait(list(busy), timeout=0.5):
                _hear(busy[pipe], state, waiting, tell)
            now = time.monotonic()
            for lane in lanes:
                if lane.path is None:
                    continue
                limit = options.seconds if lane.at else _START_SECONDS
                if now - lane.since > limit:
                    _broken(lane, state, waiting, tell, f"no answer within {limit:.0f} s")
                elif resident(lane.process.pid) > options.memory:
                    _broken(
                        lane,
                        state,
                        waiting,
                        tell,
                        f"more than {options.memory >> 20} MiB of memory",
                    )
    finally:
        for lane in lanes:
            lane.stop()


def resident(pid):
    """Bytes of memory that a process holds; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _hear(lane, state, waiting, tell):
    """Take what a worker has said."""
    try:
        while lane.pipe.poll():
            message = lane.pipe.recv()
            lane.since = time.monotonic()
            if message[0] == "begin":
                lane.at = message[1:]
            elif message[0] == "done":
                lane.outcomes.append(message[1])
            else:
                _, _, lost, _ = state.pop(id(lane))
                tell(lane.path, lane.outcomes + lost, message[1])
                lane.path = None
                return
    except (EOFError, ConnectionResetError):
        lane.process.join()
        _broken(
            lane, state, waiting, tell, f"the process ended with status {lane.process.exitcode}"
        )


def _broken(lane, state, waiting, tell, why):
    """A worker died or hangs: its query is a crash of the loader or of the judge, and the file runs again without it."""
    path, skip, lost, starts = state.pop(id(lane))
    line, sql, phase, *number = lane.at or (0, "", "nothing")
    outcomes = lane.outcomes
    lane.stop()
    lane.path = None
    if phase == "loader":
        lost = [*lost, Outcome(path, line, "crash", why, sql)]
    elif number:
        lost = [*lost, Outcome(path, line, "dialect", f"the judge: {why}")]
    if number and starts < _STARTS:
        waiting.append((path, skip | {number[0]}, lost, starts + 1))
    else:
        tell(path, outcomes + lost, [f"line {line}: given up in {phase}: {why}"])
