"""The results of a run of schedules, as data that are committed and as the table of docs/proof.md."""

import datetime
import json
import os
from collections import Counter
from dataclasses import dataclass, field

import tensorquery as tq

from .schedule import KINDS

MARKS = "<!-- proof -->", "<!-- end of proof -->"


@dataclass
class Record:
    """The sum of all verdicts.

    Attributes:
        schedules: Schedules that count: each of their faults struck in the middle of the epoch.
        missed: Schedules of which a fault struck too late, or found nothing to strike.
        disturbed: Schedules under which the machine stood still each time.
        faults: Faults that struck in the middle of an epoch, by kind, of schedules that count.
        met: Those of them that a process of the job has met.
        rows: Rows compared with those of the queries.
        violations: What should not have been.
        cpu_seconds: Of all processes.
        resumes: Rows of the table of resumes.
        planted: By bug, the number of the schedule that found it; None where none did.
        lacking: Kinds that this machine cannot make, and why.
    """

    schedules: int = 0
    missed: int = 0
    disturbed: int = 0
    faults: Counter = field(default_factory=Counter)
    met: Counter = field(default_factory=Counter)
    rows: int = 0
    violations: list = field(default_factory=list)
    cpu_seconds: float = 0.0
    resumes: list = field(default_factory=list)
    planted: dict = field(default_factory=dict)
    lacking: dict = field(default_factory=dict)

    def add(self, verdict):
        """Count a schedule without a planted bug."""
        self.cpu_seconds += verdict["cpu_seconds"]
        if verdict["violations"]:
            self._violated(verdict)
            return
        if verdict["disturbed"]:
            self.disturbed += 1
        elif not counts(verdict):
            self.missed += 1
        else:
            self.schedules += 1
            self.rows += verdict["rows"]
            self.faults.update(one["kind"] for one in verdict["struck"])
            self.met.update(one["kind"] for one in verdict["struck"] if one["met"])

    def resume(self, verdict, row):
        """Note a row of the table of resumes."""
        self.cpu_seconds += verdict["cpu_seconds"]
        self.resumes.append(row)
        if verdict["violations"]:
            self._violated(verdict)

    def _violated(self, verdict):
        self.violations.append(
            {key: verdict[key] for key in ("seed", "kind", "violations", "attempts")}
        )

    def plain(self, seconds, before=None):
        """As plain data.

        Args:
            seconds: How long the schedules took.
            before: An earlier record. What this run did not try, planted bugs or resumes, is still that one's, with its date.
        """
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        found = self._plain(seconds, date)
        for part in ("planted", "resumes"):
            if not found[part] and before is not None:
                found[part], found[f"{part}_on"] = before[part], before[f"{part}_on"]
        return found

    def _plain(self, seconds, date):
        return {
            "version": tq.__version__,
            "date": date,
            "cpus": os.cpu_count(),
            "schedules": self.schedules,
            "violations": self.violations,
            "faults": {kind: self.faults[kind] for kind in KINDS},
            "met": {kind: self.met[kind] for kind in KINDS},
            "rows": self.rows,
            "missed": self.missed,
            "disturbed": self.disturbed,
            "lacking": self.lacking,
            "resumes": self.resumes,
            "resumes_on": date,
            "planted": self.planted,
            "planted_on": date,
            "seconds": round(seconds),
            "cpu_seconds": round(self.cpu_seconds),
        }


def counts(verdict):
    """Whether all faults of a schedule struck in the middle of the epoch, the one whose turn it was among them."""
    return verdict["landed"] and all(one["landed"] for one in verdict["struck"])


def read(path):
    """A record; None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def table(record):
    """Markdown of a record."""
    if record is None:
        return "None on record; `make prove` makes one."
    planted = ", ".join(
        f"{name} ({'not found' if number is None else f'by schedule {number}'})"
        for name, number in record["planted"].items()
    )
    lines = [
        f"{record['schedules']:,} schedules on {record['date']} (version {record['version']}, {record['cpus']} CPUs, "
        f"{record['seconds'] / 60:.0f} minutes): **{len(record['violations'])} violations**, {record['rows']:,} rows compared.",
        "",
        "| fault, in the middle of an epoch | times | met |",
        "|---|---|---|",
        *(
            f"| {kind} | {times:,} | {record['met'][kind]:,} |"
            for kind, times in record["faults"].items()
        ),
        "",
        f"Of {record['missed']:,} more schedules a fault came too late or found nothing to strike; they do not count. "
        f"Bugs planted to test the harness on {record['planted_on']} were found: {planted or 'not tried'}.",
    ]
    lines += _resumes(record["resumes"], record["resumes_on"])
    if record["lacking"]:
        kinds = "; ".join(f"{kind} ({why})" for kind, why in record["lacking"].items())
        lines.append(f"Not possible on that machine: {kinds}.")
    return "\n".join(lines)


def _resumes(rows, date):
    """Markdown of the table of resumes."""
    if not rows:
        return []
    return [
        "",
        f"One epoch in many runs, on {date}. Each is killed after a few steps, and the next one goes on with other ranks, workers and "
        "rows per batch. The last column is the median time of CPU that a rank takes from the loading of the state on:",
        "",
        "| epoch | resumes | topologies | rows, each once | largest state | first batch, first and last ten runs |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['resumes']} | {row['topologies']} | {row['rows']:,} | {row['state_bytes']:,} bytes | "
            f"{' and '.join(f'{ms:.0f} ms' for ms in row['first_batch'])} |"
            for row in sorted(rows, key=lambda row: row["name"])
        ),
    ]


def show(record, page):
    """Write the table of a record into a page.

    Raises:
        ValueError: It has no place for it.
    """
    begin, end = MARKS
    text = page.read_text()
    if begin not in text or end not in text:
        raise ValueError(f"{page} has no place for the record: {begin} … {end}")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    page.write_text(f"{before}{begin}\n{table(record)}\n{end}{after}")
