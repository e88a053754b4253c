"""Loaders taking turns: a process per measurement, a round that checks rows and samples memory, then the timed ones."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from compare.limit import LIMIT, decode_command
from compare.loaders import BARE
from compare.request import Request
from compare.sums import differences
from compare.warm import read_data

CHILD = Path(__file__).with_name("child.py")
PATIENCE = 300.0
"""Seconds beyond the budget after which a measurement counts as failed."""


@dataclass
class Memory:
    """Bytes of a process tree (PSS)."""

    total: int = 0
    anonymous: int = 0
    """Without files that are mapped, which the kernel can drop."""


@dataclass
class Runs:
    """Results of the timed runs of one loader; spread is (maximum - minimum) / median of the rates."""

    name: str
    trouble: str | None = None
    """Why there are none: the library is missing, or failed."""

    results: list[dict[str, Any]] = field(default_factory=list)
    peak: Memory | None = None
    """Of the process tree, from its sampled run."""

    @property
    def rates(self) -> list[float]:
        """Rows per second, run by run."""
        return [result["rows"] / result["seconds"] for result in self.results]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def seconds(self) -> float:
        return statistics.median(result["seconds"] for result in self.results)

    @property
    def first_batch(self) -> float | None:
        times = [result["first_batch"] for result in self.results if result.get("first_batch")]
        return statistics.median(times) if times else None

    @property
    def spread(self) -> float:
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def complete(self) -> bool:
        return all(result["complete"] for result in self.results)

    def by(self, other: Runs) -> float:
        """Our rate divided by the other's, the median over the rounds: a machine that slows down slows both."""
        return statistics.median(
            mine / theirs for mine, theirs in zip(self.rates, other.rates, strict=True)
        )


class FailedError(Exception):
    """A measurement ended with an error, whose last line is the message; or two loaders delivered different rows."""


def run_child(
    loader: str, measure: str, request: Request, *, sample: bool = False, **options: Any
) -> tuple[dict[str, Any], Memory]:
    """One measurement; with `sample` also the peak memory of its process tree.

    Sampling stops the process for milliseconds, so that what is sampled is not timed.
    """
    read_data(request.path)
    if loader == LIMIT:
        command = decode_command(request)
    else:
        spec = {"loader": loader, "measure": measure, "request": request.to_json()}
        command = [sys.executable, str(CHILD), json.dumps({**spec, "options": options})]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = _sampled(child.pid) if sample else Memory()
    try:
        output, errors = child.communicate(timeout=options.get("budget", 0.0) + PATIENCE)
    except subprocess.TimeoutExpired as error:
        _kill(child.pid)
        child.communicate()
        raise FailedError(f"no result after {error.timeout:.0f} s") from error
    if child.returncode != 0 or not output.strip():
        lines = [line for line in errors.splitlines() if line.strip()]
        raise FailedError(lines[-1] if lines else f"exit status {child.returncode}")
    # Loaders may print around it, and after it while they end.
    results = [line for line in output.splitlines() if line.startswith("{")]
    if not results:
        raise FailedError(f"no result in {output[-200:]!r}")
    return json.loads(results[-1]), peak


def _sampled(pid: int) -> Memory:
    """The highest PSS of a process and those below it, until it ends."""
    peak = Memory()
    try:
        tree = psutil.Process(pid)
        while tree.is_running() and tree.status() != psutil.STATUS_ZOMBIE:
            now = [_memory(process.pid) for process in [tree, *tree.children(recursive=True)]]
            peak.total = max(peak.total, sum(one.total for one in now))
            peak.anonymous = max(peak.anonymous, sum(one.anonymous for one in now))
            time.sleep(0.005)
    except psutil.NoSuchProcess:
        pass
    return peak


def _memory(pid: int) -> Memory:
    """The proportional set size of one process now; none where it ended between two looks."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return Memory()
    kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return Memory(kilobytes["Pss"] << 10, kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"] << 10)


def _kill(pid: int) -> None:
    tree = psutil.Process(pid)
    for process in [*tree.children(recursive=True), tree]:
        process.kill()


def bare_memory(request: Request) -> Memory:
    """Of a process that has imported torch."""
    return run_child(BARE, "nothing", request, sample=True)[1]


def compare(
    names: Sequence[str], request: Request, *, repeats: int, budget: float, measure: str = "epoch"
) -> dict[str, Runs]:
    """All loaders on one request, in turns; those that lose or repeat rows are an error."""
    runs = {name: Runs(name) for name in names}
    checked = {}
    for name, found in runs.items():
        options = {"check": True} if measure == "epoch" else {}
        try:
            result, peak = run_child(name, measure, request, sample=True, budget=budget, **options)
        except FailedError as error:
            found.trouble = f"failed: {error}"
            continue
        if "missing" in result:
            found.trouble = f"missing: {result['missing']}"
        else:
            checked[name] = result
            # The limit has no torch, beyond which memory is counted.
            found.peak = None if name == LIMIT else peak
    _check(checked, request)
    for _ in range(repeats):
        for name, found in runs.items():
            if found.trouble is None:
                try:
                    result, _ = run_child(name, measure, request, budget=budget)
                except FailedError as error:
                    found.trouble = f"failed: {error}"
                else:
                    found.results.append(result)
    return runs


def _check(results: dict[str, dict[str, Any]], request: Request) -> None:
    """All that read to the end must agree with the first about the rows and the sum of each column."""
    whole = {name: result for name, result in results.items() if result["complete"]}
    if not whole:
        return
    first, *others = whole
    for name in others:
        ours, theirs = whole[first], whole[name]
        wrong = [] if ours["rows"] == theirs["rows"] else [f"{ours['rows']} and {theirs['rows']} rows"]  # fmt: skip
        if ours.get("sums") and theirs.get("sums"):
            wrong += differences(ours["sums"], theirs["sums"])
        if wrong:
            raise FailedError(f"{first} and {name} disagree on {request}: {'; '.join(wrong)}")
