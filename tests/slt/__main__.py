"""`python -m tests.slt DIR`: run a folder of sqllogictest files; see README.md in this folder."""

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from .report import Report
from .run_file import Options
from .runner import run

ENDINGS = (".test", ".slt", ".test_slow", ".test_coverage")

_BETWEEN_REPORTS = 30
"""Seconds: a run of hours can be read while it goes on."""


def _words(arguments):
    words = argparse.ArgumentParser(prog="python -m tests.slt", description=__doc__)
    words.add_argument("paths", nargs="+", type=Path, help="folders or files")
    words.add_argument(
        "--judge", choices=["sqlite", "duckdb"], help="instead of the one of each file's dialect"
    )
    words.add_argument(
        "--queries", type=int, default=0, help="so many of each file, drawn by --seed (0: all)"
    )
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    words.add_argument("--seconds", type=float, default=60, help="for one query in one engine")
    words.add_argument("--memory", type=float, default=4, help="GiB that one process may hold")
    words.add_argument("--without-loaders", action="store_true", help="only `to_arrow()`")
    words.add_argument("--report", type=Path, default=Path(".slt/report.md"))
    words.add_argument("--product", default="tests.slt.product:Product", help=argparse.SUPPRESS)
    return words.parse_args(arguments)


def files_of(paths):
    """The files below these paths, sorted, each with the folder that it is counted under."""
    found = []
    for path in paths:
        if path.is_file():
            found.append((path.absolute(), path.parent.name))
        for one in sorted(path.rglob("*")):
            if one.suffix in ENDINGS and one.is_file():
                below = one.relative_to(path).parts
                found.append((one.absolute(), "/".join([path.name, *below[:-1]][:3])))
    return found


def main(arguments=None):
    """The command line; returns the exit status."""
    words = _words(arguments)
    files = files_of(words.paths)
    if not files:
        named = ", ".join(map(str, words.paths))
        print(f"no file ends with {', '.join(ENDINGS)} below {named}", file=sys.stderr)
        return 2
    module, _, name = words.product.partition(":")
    report, start, suites = Report(), time.monotonic(), dict(files)
    with tempfile.TemporaryDirectory(prefix="slt-") as scratch:
        os.environ.setdefault("TENSORQUERY_CACHE", f"{scratch}/cache")
        options = Options(
            scratch,
            words.judge,
            words.queries,
            words.seed,
            not words.without_loaders,
            words.seconds,
            int(words.memory * 2**30),
            getattr(importlib.import_module(module), name),
        )

        asked = (
            f"{words.queries} queries of each file (seed {words.seed})"
            if words.queries
            else "all queries"
        )
        ways = "to_arrow() alone" if words.without_loaders else "to_arrow() and two ranks"
        words.report.parent.mkdir(parents=True, exist_ok=True)
        written = 0

        def write():
            took = time.monotonic() - start
            head = f"{asked}, {ways}, {report.files} of {len(files)} files, {took:.0f} s"
            words.report.write_text(report.text([head]), encoding="utf-8")

        def tell(path, outcomes, notes):
            nonlocal written
            report.add(path, suites[Path(path)], outcomes, notes)
            if time.monotonic() - written > _BETWEEN_REPORTS:
                write()
                written = time.monotonic()
            bad = sum(one.outcome in ("wrong", "crash") for one in outcomes)
            mark = f", {bad} WRONG OR CRASHED" if bad else ""
            minutes = (time.monotonic() - start) / 60
            print(
                f"{report.files}/{len(files)} {path}: {len(outcomes)}{mark} ({minutes:.1f} min)",
                flush=True,
            )

        run([path for path, _ in files], options, words.jobs, tell)
        write()
    seconds = time.monotonic() - start
    print(f"{report.summary()}, in {seconds:.0f} s. See {words.report}")
    for note in report.notes[:20]:
        print(f"  not run: {note}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
