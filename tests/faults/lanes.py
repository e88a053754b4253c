"""Schedules side by side: each in a process of its own, forked from this one, which has imported everything and started nothing."""

import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import stores

from . import chain, sandbox, tables
from .schedule import Schedule

_TRIES = 4
"""Of a schedule under which the machine stood still."""


@dataclass(frozen=True)
class Case:
    """A schedule to run, and the bug that is planted meanwhile, or None."""

    schedule: Schedule
    plant: str | None = None


class Lanes:
    """Slots in which cases run side by side; a context.

    Args:
        count: Cases at a time.
        has_store: Whether there shall be an object store.
        paused_by: While this file exists, no case is started.
    """

    def __init__(self, count, has_store, paused_by=None):
        self._count = count
        self._has_store = has_store
        self._paused_by = paused_by
        self._stack = contextlib.ExitStack()
        self._proxies = [None] * count
        self._store = None
        self._written = set()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.folder = Path(tempfile.mkdtemp(prefix="tensorquery-faults-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            (self.folder / "tables").mkdir()
            if self._has_store:
                self._store = stack.enter_context(stores.serve_minio())
                self._proxies = [
                    stack.enter_context(stores.fault_proxy(self._store, self.folder / f"proxy{n}"))
                    for n in range(self._count)
                ]
            self._stack = stack.pop_all()
        # Else each fork looks through all that was imported, and copies it by doing so.
        gc.collect()
        gc.freeze()
        return self

    def __exit__(self, *error):
        self._stack.close()

    def run(self, cases, ended):
        """Run cases.

        Args:
            cases: An iterable of cases; asked for the next one when a lane is free.
            ended: Called with each case and its verdict as plain data; True ends the run.
        """
        cases, again = iter(cases), deque()
        free, running, tries = list(range(self._count)), {}, {}
        over = False
        while True:
            while free and not over and not self._is_paused():
                case = again.popleft() if again else next(cases, None)
                if case is None:
                    break
                self._prepare(case.schedule)
                lane = free.pop()
                running[self._start(case, lane)] = (case, lane)
            if not running:
                if self._is_paused() and not over:
                    time.sleep(1)
                    continue
                return
            pid, status = os.waitpid(-1, 0)
            if pid not in running:
                continue
            case, lane = running.pop(pid)
            free.append(lane)
            verdict = self._verdict(case, lane, status)
            key = (case.schedule.seed, case.plant)
            tries[key] = tries.get(key, 0) + 1
            if verdict["disturbed"] and tries[key] < _TRIES and not over:
                again.append(case)
                continue
            over = ended(case, verdict) or over

    def _is_paused(self):
        return self._paused_by is not None and Path(self._paused_by).exists()

    def _start(self, case, lane):
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            sandbox.end_with_parent()
            sandbox.adopt_orphans()
            folder = self._folder(lane)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            place = chain.Place(folder, self.folder / "tables", self._proxies[lane])
            verdict = chain.run(case.schedule, place, case.plant)
            (self.folder / f"verdict{lane}").write_text(json.dumps(verdict.plain()))
            os._exit(0)
        finally:
            os._exit(1)

    def _folder(self, lane):
        return self.folder / f"lane{lane}"

    def _verdict(self, case, lane, status):
        path = self.folder / f"verdict{lane}"
        try:
            found = json.loads(path.read_text())
            path.unlink()
        except FileNotFoundError:
            failed = chain.Verdict(case.schedule.seed, case.schedule.kind)
            failed.violations.append(f"the process of the schedule ended with status {status}")
            found = failed.plain()
        if found["violations"]:
            found["kept"] = str(self._keep(case, lane))
        return found

    def _keep(self, case, lane):
        """Where the files of a schedule that failed stay, to look at."""
        kept = Path(tempfile.mkdtemp(prefix=f"tensorquery-seed-{case.schedule.seed}-"))
        for path in self._folder(lane).glob("*/*"):
            if path.suffix in (".stderr", ".journal"):
                (kept / path.parent.name).mkdir(exist_ok=True)
                shutil.copy(path, kept / path.parent.name)
        return kept

    def _prepare(self, schedule):
        """Write its table where it is not there yet, in a process of its own: this one starts no threads."""
        name = f"{schedule.profile}-{schedule.format}"
        folder, uploads = self.folder / "tables" / name, schedule.place == "store"
        if (name, uploads) in self._written:
            return
        pid = os.fork()
        if pid == 0:
            try:
                if not folder.exists():
                    tables.write(folder, schedule.profile, schedule.format)
                if uploads:
                    self._store.upload(folder / "t", name)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"the table {name} could not be written")
        self._written.add((name, uploads))
