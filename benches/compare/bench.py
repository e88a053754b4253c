"""One run of the benchmark: what was asked for, the figures so far, and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from compare.loaders import LOADERS, OURS
from compare.request import Request
from compare.turns import Memory, Runs, bare_memory, compare, run_child


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured."""

    what: str
    figure: float | None
    """None: it could not be measured."""

    wanted: float
    at_least: bool
    aim: float | None = None
    """A better figure, hoped for beyond the target."""

    note: str = ""

    @property
    def met(self) -> bool:
        if self.figure is None:
            return False
        return self.figure >= self.wanted if self.at_least else self.figure <= self.wanted

    @property
    def attainment(self) -> float | None:
        """How far it is met: 1 is just met, more is better, whichever way the figure goes."""
        if not self.figure:
            return None
        return self.figure / self.wanted if self.at_least else self.wanted / self.figure


@dataclass
class Bench:
    """The options of a run, and what it has found."""

    repeats: int
    budget: float
    """Seconds after which a loader is broken off, and its rate until then is its figure."""

    cores: int
    leave_out: frozenset[str] = frozenset()
    work: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    _bare: Memory | None = None

    def request(self, path: object, batch_size: int = 8192, **parts: Any) -> Request:
        return Request(str(path), batch_size, threads=self.cores, **parts)

    @property
    def bare(self) -> Memory:
        """The memory of a process that has imported torch; measured once."""
        if self._bare is None:
            self._bare = bare_memory(self.request("."))
        return self._bare

    def compare(
        self, what: str, request: Request, names: Sequence[str], measure: str = "epoch"
    ) -> dict[str, Runs]:
        """Let the loaders that can do it take turns, and print a line for each."""
        able = [
            name
            for name in names
            if name not in self.leave_out
            and (name not in LOADERS or request.needs <= LOADERS[name].can)
        ]
        bare = self.bare
        runs = compare(able, request, repeats=self.repeats, budget=self.budget, measure=measure)
        for found in runs.values():
            self._row(what, request, found, bare)
        return runs

    def child(
        self, what: str, request: Request, measure: str, repeats: int | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """tensorquery alone, `repeats` times (None: as often as asked for); the results are figures too."""
        results = [
            run_child(OURS, measure, request, **options)[0] for _ in range(repeats or self.repeats)
        ]
        self.figures.append({"work": self.work, "what": what, "loader": OURS, "results": results})
        return results

    def target(
        self,
        what: str,
        figure: float | None,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        aim: float | None = None,
        note: str = "",
    ) -> None:
        """Judge a figure by its target."""
        wanted = at_least if at_most is None else at_most
        assert wanted is not None
        verdict = Verdict(what, figure, wanted, at_most is None, aim, note)
        self.verdicts.append(verdict)
        print(f"<!-- {what}: {figure} ({'met' if verdict.met else 'MISSED'}) -->", flush=True)

    def ratio(self, what: str, runs: dict[str, Runs], other: str, **wanted: Any) -> None:
        """tensorquery's rate divided by another's, as a target."""
        ours, theirs = runs[OURS], runs.get(other)
        if theirs is None or not theirs.results or not ours.results:
            trouble = ours.trouble or (theirs.trouble if theirs is not None else "left out")
            self.target(what, None, note=str(trouble), **wanted)
        else:
            self.target(what, ours.by(theirs), **wanted)

    def fastest(
        self, what: str, runs: dict[str, Runs], peers: Sequence[str], at_least: float
    ) -> None:
        """tensorquery's rate divided by the fastest peer's, as a target; missing peers are named."""
        ran = [runs[name] for name in peers if name in runs and runs[name].results]
        absent = [name for name in peers if name in runs and not runs[name].results]
        note = f"without {', '.join(absent)}" if absent else ""
        if not ran or not runs[OURS].results:
            self.target(f"{what}: × the fastest peer", None, at_least=at_least, note=note)
            return
        best = max(ran, key=lambda one: one.rate)
        self.target(
            f"{what}: × {best.name}, the fastest peer",
            runs[OURS].by(best),
            at_least=at_least,
            note=note,
        )

    def _row(self, what: str, request: Request, found: Runs, bare: Memory) -> None:
        self.figures.append(
            {
                "work": self.work,
                "what": what,
                "loader": found.name,
                "batch_size": request.batch_size,
                "trouble": found.trouble,
                "results": found.results,
                "peak_bytes": None if found.peak is None else found.peak.total - bare.total,
            }
        )
        start = f"| {what} | {request.batch_size} | {found.name} |"
        if found.trouble is not None or not found.results:
            print(f"{start} {found.trouble} | | | | |", flush=True)
            return
        first = "" if found.first_batch is None else f"{found.first_batch * 1e3:.0f}"
        peak = "" if found.peak is None else f"{(found.peak.total - bare.total) / 2**20:.0f}"
        seconds = f"{found.seconds:.3f}" if found.complete else f"broken off at {found.seconds:.0f}"
        print(
            f"{start} {found.rate / 1e6:.2f} | {seconds} | {found.spread:.0%} | {first} | {peak} |",
            flush=True,
        )

    def as_json(self) -> dict[str, Any]:
        """Everything that was measured."""
        verdicts = [{**asdict(verdict), "met": verdict.met} for verdict in self.verdicts]
        return {"figures": self.figures, "verdicts": verdicts}
