"""`python -m tests.faults`: run schedules of faults; see README.md in this folder."""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from . import sandbox

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_RECORD = _HERE / "record.json"
_CAUGHT_WITHIN = 50
"""Schedules that a planted bug may need."""

_BETWEEN_RECORDS = 20
_LANES = 3 * (os.cpu_count() or 1)
"""Schedules wait most of the time: for a store that stalls, for a process that is stopped, for each other."""

_TRIES = 4
"""For each kind, until a fault has struck that came too late before."""


def _words(arguments):
    words = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    words.add_argument("--seed", type=int, help="replay one schedule, and tell what happens")
    words.add_argument("--plant", help="with --seed: the planted bug")
    words.add_argument("--try", dest="cases", action="append", default=[], metavar="SEED[:PLANT]")
    words.add_argument("--each", action="store_true", help="until each kind has struck once")
    words.add_argument("--count", type=int, help="so many schedules that count, from --first on")
    words.add_argument(
        "--hours", type=float, help="schedules for so long, from --first on, after all else"
    )
    words.add_argument("--first", type=int, default=0, help="the first seed")
    words.add_argument("--planted", action="store_true", help="before, find each planted bug")
    words.add_argument(
        "--resumes",
        metavar="COUNT[:ROWS]",
        help="before, so many resumes in one epoch, for each way of dealing, or the first ROWS of them",
    )
    words.add_argument("--lanes", type=int, default=_LANES, help="schedules at a time")
    words.add_argument("--json", type=Path, help="write all verdicts to this file")
    words.add_argument("--record", type=Path, help="write the sum of them to this file")
    words.add_argument(
        "--show", action="store_true", help="only write the record into docs/proof.md"
    )
    words.add_argument("--pause-while", help="start nothing while this file exists")
    return words.parse_args(arguments)


def _cases(run):
    """Yield the cases to run, of those that the machine can make."""
    from .lanes import Case
    from .schedule import KINDS, cheapest, draw, work

    words = run.words
    if words.seed is not None:
        yield Case(draw(words.seed), words.plant)
    for case in words.cases:
        seed, _, plant = case.partition(":")
        yield Case(draw(int(seed)), plant or None)
    if words.each:
        for schedules in zip(*(cheapest(kind, _TRIES) for kind in KINDS), strict=True):
            # Short ones last: whether another one is needed is then known soon.
            for schedule in sorted(schedules, key=work, reverse=True):
                if run.can(schedule) and not run.record.faults[schedule.kind]:
                    yield Case(schedule)
    if words.count is not None or words.hours is not None:
        yield from (Case(one) for one in map(draw, itertools.count(words.first)) if run.can(one))


def _kinds(schedule):
    struck = [fault.kind for attempt in schedule.attempts for fault in attempt.faults]
    # Tables in a store come in by other kinds, too.
    return [*struck, "the store refuses"] if schedule.place == "store" else struck


class _Run:
    def __init__(self, words, lacking):
        from .report import Record

        self.words = words
        self.record = Record(lacking=lacking)
        self.verdicts = []
        self.began = time.monotonic()

    def can(self, schedule):
        """Whether this machine can make all of its faults."""
        return not set(_kinds(schedule)) & set(self.record.lacking)

    def ended(self, case, verdict):
        """Note a verdict; whether it is enough."""
        self.verdicts.append({**verdict, "plant": case.plant})
        if case.plant is None:
            self.record.add(verdict)
        self._tell(case, verdict)
        if self.words.record is not None and len(self.verdicts) % _BETWEEN_RECORDS == 0:
            self.keep()
        if self.words.hours is not None:
            return time.monotonic() - self.began > self.words.hours * 3600
        return self.words.count is not None and self.record.schedules >= self.words.count

    def _tell(self, case, verdict):
        state = "VIOLATION" if verdict["violations"] else ("ok" if verdict["landed"] else "missed")
        if verdict["disturbed"]:
            state = "disturbed"
        planted = f" with {case.plant!r} planted" if case.plant else ""
        print(
            f"seed {verdict['seed']}{planted}: {state}; {verdict['kind']}; {verdict['rows']} rows, "
            f"{verdict['seconds']:.1f} s, {verdict['cpu_seconds']:.1f} s of CPU",
            flush=True,
        )
        if self.words.seed is not None or verdict["violations"]:
            for line in (*verdict["attempts"], *verdict["violations"]):
                print(f"  {line}")
            if verdict["violations"]:
                print(f"  journals: {verdict.get('kept')}")
                print(f"  again: python -m tests.faults --seed {verdict['seed']}", flush=True)

    def keep(self):
        """Write the record, as far as it goes."""
        from . import report

        before = None if self.words.record is None else report.read(self.words.record)
        found = self.record.plain(time.monotonic() - self.began, before)
        if self.words.record is not None:
            self.words.record.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return found

    def resume(self, lanes):
        """Fill the table of resumes."""
        from . import resumes
        from .lanes import Case

        def ended(case, verdict):
            self.verdicts.append({**verdict, "plant": None})
            self.record.resume(verdict, resumes.row(verdict))
            self._tell(case, verdict)

        schedules = resumes.draw(*map(int, self.words.resumes.split(":")))
        lanes.run(map(Case, schedules), ended)

    def find_planted(self, lanes):
        """Plant each bug, and count the schedules until one finds it."""
        from .lanes import Case
        from .planted import BUGS
        from .schedule import draw

        for name in BUGS:
            found = []

            def ended(case, verdict, found=found, name=name):
                if verdict["violations"]:
                    found.append(case.schedule.seed - self.words.first + 1)
                    print(f"{name!r} was found by seed {case.schedule.seed}", flush=True)
                return bool(found)

            seeds = range(self.words.first, self.words.first + _CAUGHT_WITHIN)
            lanes.run((Case(one, name) for one in map(draw, seeds) if self.can(one)), ended)
            self.record.planted[name] = min(found, default=None)


def main(arguments):
    """Run; the status is 1 where something should not have been."""
    words = _words(arguments)
    if words.show:
        from . import report

        report.show(report.read(_RECORD), _ROOT / "docs/proof.md")
        return 0
    with tempfile.TemporaryDirectory(prefix="tensorquery-faults-") as folder:
        sandbox.enter(folder, arguments)
    # From here on inside. Not before: it takes seconds.
    from . import report
    from .lanes import Lanes
    from .schedule import draw

    store = _ROOT / ".cache" / "servers" / "minio" / "complete"
    run = _Run(words, sandbox.lacking(store.exists()))
    for kind, why in run.record.lacking.items():
        print(f"not possible here: {kind}: {why}", flush=True)
    if words.seed is not None:
        print(json.dumps(draw(words.seed).plain(), indent=1))
    with Lanes(words.lanes, store.exists(), words.pause_while) as lanes:
        if words.planted:
            run.find_planted(lanes)
        if words.resumes is not None:
            run.resume(lanes)
        run.began = time.monotonic()
        lanes.run(_cases(run), run.ended)
    found = run.keep()
    print(report.table(found))
    if words.json is not None:
        words.json.write_text(json.dumps({"record": found, "verdicts": run.verdicts}))
    found_bugs = all(number is not None for number in run.record.planted.values())
    return 1 if run.record.violations or not found_bugs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
