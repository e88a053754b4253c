"""Counts the instructions of the core's hot functions: ``make bench-micro``.

``benches/micro.rs`` does each work under callgrind, which counts what its function ``measured`` runs, in the thread that calls it
(blocking reads of the planning are in others). The counts depend on the code and the compiler, not on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path


def names(program: str) -> list[str]:
    """The works that there are."""
    return subprocess.run([program, "--names"], check=True, capture_output=True, text=True).stdout.splitlines()  # fmt: skip


def instructions(program: str, name: str) -> int:
    """Instructions of one work."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind", "--tool=callgrind", "--toggle-collect=measured",
            f"--callgrind-out-file={folder}/out", program, "--once", name,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{name}: valgrind ended with {done.returncode}:\n{done.stderr}")
    return int(found[1])


def main() -> None:
    """Print a table; compare with the counts of an earlier run where there are some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the compiled benches/micro.rs")
    parser.add_argument("--kept", type=Path, default=Path(".bench/instructions.json"))
    options = parser.parse_args()
    before = json.loads(options.kept.read_text()) if options.kept.exists() else {}
    counts = {}
    print("| work | million instructions | by the last run |\n|---|---:|---:|")
    for name in names(options.program):
        counts[name] = instructions(options.program, name)
        change = f"{counts[name] / before[name]:.3f}" if name in before else ""
        print(f"| {name} | {counts[name] / 1e6:.2f} | {change} |", flush=True)
    options.kept.write_text(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
