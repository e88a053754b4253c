"""Promise 1 (docs/promises.md): the proof of exactly-once delivery, in short: each kind of fault strikes the middle of an epoch once, and each planted bug
is found. `make prove HOURS=…` runs it long; README.md in this folder says how it works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from once import once_a_run

from . import report
from .planted import BUGS
from .schedule import KINDS, draw

# The run of all schedules is a fixture, which counts as a part of the first test.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(960)]

ROOT = Path(__file__).resolve().parents[2]

FOUND_BY = {
    "count prefetched rows as consumed": 1,
    "drop a remainder": 1,
    "reuse a stale file": 2,
}
"""Seeds that find a planted bug."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The record of a short run, and its verdicts."""
    return once_a_run(
        tmp_path_factory, "faults", lambda: _short_run(tmp_path_factory.mktemp("faults"))
    )


def _short_run(folder):
    command = [sys.executable, "-m", "tests.faults", "--each", "--resumes", "5:1", "--lanes", "3"]
    command += ["--json", folder / "verdicts"]
    for bug, seed in FOUND_BY.items():
        command += ["--try", f"{seed}:{bug}"]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (folder / "verdicts").exists(), done.stdout + done.stderr
    found = json.loads((folder / "verdicts").read_text())
    return found["record"], found["verdicts"]


def test_each_row_is_delivered_once(outcome):
    record, _ = outcome
    assert record["violations"] == []
    # A schedule may strike with several kinds, after which those need none of their own.
    assert record["schedules"] >= (len(KINDS) - len(record["lacking"])) / 2
    assert record["rows"] > 1_000_000


def test_an_epoch_of_many_runs_delivers_each_row_once(outcome):
    (row,) = outcome[0]["resumes"]
    assert row["violations"] == 0
    assert row["resumes"] == 5
    assert row["topologies"] >= 4


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.replace(" ", "-"))
def test_a_fault_strikes_in_the_middle_of_an_epoch(outcome, kind):
    record, verdicts = outcome
    if kind in record["lacking"]:
        pytest.skip(record["lacking"][kind])
    assert record["faults"][kind] >= 1
    struck = [one for one in verdicts if kind in [fault["kind"] for fault in one["struck"]]]
    assert all(one["splits"] >= 8 for one in struck)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(outcome, bug):
    _, verdicts = outcome
    (verdict,) = [one for one in verdicts if one["plant"] == bug]
    rows = [text for text in verdict["violations"] if "rows" in text]
    assert rows, verdict


def test_a_seed_says_one_thing():
    schedules = [draw(seed) for seed in range(4 * len(KINDS))]
    assert schedules == [draw(seed) for seed in range(4 * len(KINDS))]
    assert {one.kind for one in schedules} == set(KINDS)


def test_the_page_shows_the_record():
    record = report.read(ROOT / "tests/faults/record.json")
    begin, end = report.MARKS
    shown = (ROOT / "docs/proof.md").read_text().partition(begin)[2].partition(end)[0]
    assert shown.strip() == report.table(record).strip(), "write it anew: python -m tests.faults --show"  # fmt: skip
    assert record is None or record["violations"] == []
