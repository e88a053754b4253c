"""Runs the differential tests in processes of their own, so that a crash or a hang is a difference and not the end."""

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from differential_tally import Tally

PATIENCE = 300
"""Seconds without a finished seed, after which a process is taken to hang."""


class Worker:
    """One process, which asks the seeds `first`, `first + step`, …"""

    def __init__(self, first, step, told):
        self.next, self.step, self.told = first, step, told
        self.start()

    def start(self):
        """Begin at the next seed."""
        script = Path(__file__).with_name("differential.py")
        command = [
            sys.executable,
            str(script),
            "--worker",
            str(self.step),
            "--seed",
            str(self.next),
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.heard = time.monotonic()
        self.errors = []
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        threading.Thread(target=self._keep, args=(self.process,), daemon=True).start()

    def _listen(self, process):
        for line in process.stdout:
            self.told.put((self, process, line))
        self.told.put((self, process, None))

    def _keep(self, process):
        for line in process.stderr:
            self.errors = [*self.errors[-15:], line]

    def stop(self):
        """End the process."""
        self.process.kill()
        self.process.wait()


def run_processes(queries, first_seed, processes, minutes=None):
    """Run until so many queries are compared, or so many minutes are over.

    Returns:
        The `Tally`, and the seed after the last one.
    """
    told, tally, last = queue.Queue(), Tally(), first_seed
    workers = [Worker(first_seed + number, processes, told) for number in range(processes)]
    said, end = 0, time.monotonic() + 60 * (minutes or 0)
    try:
        while tally.compared < queries and (minutes is None or time.monotonic() < end):
            try:
                worker, process, line = told.get(timeout=5)
            except queue.Empty:
                for worker in workers:
                    if time.monotonic() - worker.heard > PATIENCE:
                        worker.stop()
                continue
            if process is not worker.process:
                continue
            if line is None:
                process.wait()
                tail = "".join(worker.errors)
                note(
                    tally,
                    f"seed {worker.next}: the process hung or ended with {process.returncode}\n{tail}",
                )
                worker.next += worker.step
                worker.start()
                continue
            result = json.loads(line)
            worker.heard, worker.next = time.monotonic(), result["seed"] + worker.step
            last = max(last, result["seed"])
            found = Tally.of(result["tally"])
            tally += found
            for difference in found.differences:
                print(f"\n{difference}", flush=True)
            if tally.compared // 1000 > said:
                said = tally.compared // 1000
                print(
                    f"{tally.compared} queries, {sum(tally.refused.values())} refused, {len(tally.differences)} differences, next seed {last + 1}",
                    flush=True,
                )
    finally:
        for worker in workers:
            worker.stop()
    return tally, last + 1


def note(tally, text):
    """A difference that no process could report."""
    tally.differences.append(text)
    print(f"\n{text}", flush=True)
