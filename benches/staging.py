"""Measures a stage that does not fit the memory: ``make bench-staging``.

Two tables, together 10 GiB as Arrow data, are joined by key and aggregated under ``Session(memory_limit="1GiB")``, in a process
of its own, and the loader delivers the groups. Neither a table, nor the join's smaller side, nor the groups fit the limit, so this
works by spilling to disk alone; the process that measures sees the spill files grow. Sums are checked against what was written.
Ends with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compare.machine import load, machine
from staging_data import COLUMNS, make_staging

DATA = Path(".bench")
GIB = 2**30
WANTED_GIB = 2.0
EVERY = 0.05
"""Seconds between two looks at the process and its files."""


def sql() -> str:
    """The aggregate over the join: every column of both tables is read."""
    numbers = [
        f"{table[0]}.{table[0]}{number}"
        for table in ("items", "events")
        for number in range(COLUMNS)
    ]
    return f"""
        SELECT
            member,
            count(*) AS events,
            sum({" + ".join(numbers)}) AS total,
            min(e.e0) AS least,
            max(i.i0) AS most
        FROM events AS e JOIN items AS i ON e.key = i.key
        GROUP BY member
    """


def measure(tables: Path, stages: Path, limit: str) -> dict[str, Any]:
    """Stage and read all groups in this process."""
    import tensorquery as tq

    session = tq.Session(memory_limit=limit)
    for table in ("items", "events"):
        session.register_parquet(table, tables / table)
    before, start = _peak(), time.perf_counter()
    loader, _ = tq.create_dataloader(
        sql(),
        session=session,
        stage_dir=stages,
        batch_size=8192,
        output_format="numpy",
        show_progress=True,
    )
    staged, staged_peak = time.perf_counter() - start, _peak()
    found = dict.fromkeys(("groups", "events", "total"), 0)
    for batch in loader:
        found["groups"] += len(batch["member"])
        found["events"] += int(batch["events"].sum())
        found["total"] += int(batch["total"].sum())
    return {
        "found": found,
        "seconds to the loader": staged,
        "seconds in all": time.perf_counter() - start,
        "peak of imports": before,
        "peak at the loader": staged_peak,
        "peak": _peak(),
    }


def _peak(process: str = "self") -> int:
    """The most memory that a process has held at once, in bytes, mapped files included."""
    return _status(process)["VmHWM"]


def _status(process: str) -> dict[str, int]:
    text = Path(f"/proc/{process}/status").read_text()
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}


def watched(command: list[str], spills: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Run a child whose temporary files lie in `spills`; return its output, and its largest sizes."""
    environment = {**os.environ, "TMPDIR": str(spills)}
    seen = {"spilled": 0, "spill files": 0, "anonymous": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        while child.poll() is None:
            sizes = list(_sizes(spills))
            seen["spilled"] = max(seen["spilled"], sum(sizes))
            seen["spill files"] = max(seen["spill files"], len(sizes))
            # It may end between two looks.
            try:
                seen["anonymous"] = max(
                    seen["anonymous"], _status(str(child.pid)).get("RssAnon", 0)
                )
            except FileNotFoundError:
                break
            time.sleep(EVERY)
        assert child.stdout is not None
        output = child.stdout.read()
    if child.returncode:
        raise SystemExit(f"the measured process ended with status {child.returncode}")
    return json.loads(output.splitlines()[-1]), seen


def _sizes(folder: Path) -> Any:
    for parent, _, names in os.walk(folder):
        for name in names:
            # Deleted meanwhile, perhaps.
            try:
                yield Path(parent, name).stat().st_size
            except FileNotFoundError:
                continue


def main() -> int:
    """Make the tables, measure in a fresh process, print the figures, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gib", type=float, default=10, help="Arrow data of both tables (default 10)"
    )
    parser.add_argument("--limit", default="1GiB", help="the session's memory_limit (default 1GiB)")
    parser.add_argument(
        "--child", nargs=3, metavar=("TABLES", "STAGES", "LIMIT"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.child:
        tables, stages, limit = options.child
        print(json.dumps(measure(Path(tables), Path(stages), limit)))
        return 0
    tables = DATA / f"staging-{options.gib:g}"
    made = make_staging(tables, options.gib)
    print(
        f"{machine()}; {load()} before\n\n"
        f"{made['keys'] / 1e6:.1f} M items and {made['events'] / 1e6:.1f} M events: {made['bytes'] / GIB:.2f} GiB of Arrow data, "
        f"{made['stored'] / GIB:.2f} GiB of Parquet; {made['groups'] / 1e6:.1f} M groups; memory_limit {options.limit}\n"
    )
    # Beside the tables, and not in a temporary directory that may be memory.
    with tempfile.TemporaryDirectory(dir=DATA, prefix="staging-run-") as folder:
        stages, spills = Path(folder, "stages"), Path(folder, "spills").resolve()
        spills.mkdir()
        command = [sys.executable, __file__, "--child", str(tables), str(stages), options.limit]
        found, seen = watched(command, spills)
        staged = sum(_sizes(stages))
    expected = {name: made[name] for name in ("groups", "events", "total")}
    if found["found"] != expected:
        raise SystemExit(f"the loader delivered {found['found']}, expected {expected}")
    print("| figure | |\n|---|---:|")
    for name in ("seconds to the loader", "seconds in all"):
        print(f"| {name} | {found[name]:.1f} |")
    sizes = {
        "peak memory of imports": found["peak of imports"],
        "peak memory when the loader was made": found["peak at the loader"],
        "peak memory": found["peak"],
        "peak memory, anonymous": seen["anonymous"],
        "most in spill files at once": seen["spilled"],
        "stage": staged,
    }
    for name, size in sizes.items():
        print(f"| {name}, GiB | {size / GIB:.2f} |")
    print(f"\n{load()} after\n\n| target | figure | wanted | |\n|---|---:|---:|---|")
    met = True
    for what, figure, wanted, good in (
        (
            "peak memory of the process, GiB",
            found["peak"] / GIB,
            f"< {WANTED_GIB:g}",
            found["peak"] < WANTED_GIB * GIB,
        ),
        ("spill files at once", seen["spill files"], "> 0", seen["spilled"] > 0),
    ):
        met &= good
        print(f"| {what} | {figure:.4g} | {wanted} | {'met' if good else 'MISSED'} |")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
