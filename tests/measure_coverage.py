#!/usr/bin/env python3
"""Measures which lines of ``src``, and which lines and branches of ``python``, the tests run: ``make coverage``.

As a script: builds our own crate with counters, runs the tests, and prints one table. As a compiler:
``RUSTC_WORKSPACE_WRAPPER`` names this file, and cargo calls it for crates of this workspace alone, so that the
dependencies that are compiled already serve. A process that is killed leaves no counts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# Counts and reports.
PLACE = ROOT / ".cache" / "coverage"
EXTENSION = ROOT / "python" / "tensorquery" / "_core.abi3.so"
ENVIRONMENT = {
    # Processes of one program share four files of counts.
    "LLVM_PROFILE_FILE": f"{PLACE}/%4m.profraw",
    "COVERAGE_FILE": f"{PLACE}/python",
}


def compile_with_counters(command: list[str]) -> None:
    """Become the compiler that cargo names, with counters in the library and in its tests."""
    crate = command[command.index("--crate-name") + 1] if "--crate-name" in command else ""
    own = ["-Cinstrument-coverage"] if crate in ("tensorquery", "it") else []
    os.execvp(command[0], [*command, *own])


def llvm(name: str) -> Path:
    """A program of the compiler's LLVM: that of another version does not read its counts."""
    run = subprocess.run(
        ["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True
    )
    found = sorted(Path(run.stdout.strip()).glob(f"lib/rustlib/*/bin/{name}"))
    if not found:
        raise SystemExit(f"coverage: {name} not found. Install it: rustup component add llvm-tools")
    return found[0]


def cargo(*arguments: str) -> list[Path]:
    """Run cargo over our crate with counters; the programs and libraries that it made."""
    environment = os.environ | {"RUSTC_WORKSPACE_WRAPPER": str(Path(__file__).resolve())}
    command = ["cargo", *arguments, "--locked", "--message-format=json-render-diagnostics"]
    run = subprocess.run(
        command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    made = [json.loads(line) for line in run.stdout.splitlines()]
    artifacts = [one for one in made if one["reason"] == "compiler-artifact"]
    own = [one for one in artifacts if one["target"]["name"] in ("tensorquery", "it")]
    return [
        Path(file)
        for one in own
        for file in [one["executable"] or shared(one["filenames"])]
        if file
    ]


def shared(files: list[str]) -> str | None:
    """The shared library among these files."""
    return next((file for file in files if file.endswith((".so", ".dylib"))), None)


def put(extension: Path) -> None:
    """Put an extension in place; a process that has the one before open keeps it."""
    beside = EXTENSION.with_suffix(".new")
    shutil.copy2(extension, beside)
    beside.replace(EXTENSION)


def lines_of_rust(programs: list[Path]) -> dict[str, tuple[int, int]]:
    """Lines that ran, and all lines, by room of ``src``; modules of tests are left out."""
    merged = PLACE / "merged.profdata"
    counts = [str(path) for path in PLACE.glob("*.profraw")]
    # A process that was killed as it wrote leaves a torn file.
    merge = ["merge", "--sparse", "--failure-mode=all", "-o", str(merged), *counts]
    subprocess.run([llvm("llvm-profdata"), *merge], check=True)
    objects = [part for program in programs[1:] for part in ("--object", str(program))]
    export = ["export", "--summary-only", f"--instr-profile={merged}", str(programs[0]), *objects]
    report = subprocess.run([llvm("llvm-cov"), *export], check=True, capture_output=True).stdout
    rooms: dict[str, tuple[int, int]] = {}
    for file in json.loads(report)["data"][0]["files"]:
        path = Path(file["filename"])
        if not path.is_relative_to(ROOT / "src"):
            continue
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        if any(part.endswith("tests") for part in parts):
            continue
        ran, lines = rooms.get(parts[0], (0, 0))
        found = file["summary"]["lines"]
        rooms[parts[0]] = (ran + found["covered"], lines + found["count"])
    return rooms


def totals_of_python() -> dict[str, Any]:
    """Counts of lines and of branches."""
    report = PLACE / "python.json"
    command = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(report)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | ENVIRONMENT)
    totals: dict[str, Any] = json.loads(report.read_text())["totals"]
    return totals


def run_tests(programs: list[Path], arguments: list[str]) -> bool:
    """Run the Rust tests and the Python tests; whether all of them passed."""
    environment = os.environ | ENVIRONMENT
    passed = True
    for program in programs:
        if program.suffix not in (".so", ".dylib"):
            passed &= subprocess.run([program], cwd=ROOT, env=environment).returncode == 0
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--cov=python/tensorquery",
        "--cov-branch",
        "--cov-report=",
    ]
    return (
        subprocess.run([*command, *arguments], cwd=ROOT, env=environment).returncode == 0 and passed
    )


def main() -> None:
    """Compile, or measure and print the table."""
    if Path(sys.argv[1] if len(sys.argv) > 1 else "").name == "rustc":
        compile_with_counters(sys.argv[1:])
    llvm("llvm-profdata"), llvm("llvm-cov")
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    programs = cargo("test", "--no-run", "--lib", "--test", "it")
    (extension,) = cargo("build", "--lib", "--features", "python")
    kept = shutil.copy2(extension, PLACE / "extension.so")
    before = shutil.copy2(EXTENSION, PLACE / "before.so")
    put(kept)
    try:
        passed = run_tests(programs, sys.argv[1:])
    finally:
        put(before)
    rooms = lines_of_rust([*programs, Path(kept)])
    print("\n| part | lines | share that ran |\n|---|---:|---:|")
    for room, (ran, lines) in sorted(rooms.items()):
        print(f"| `src/{room}` | {lines:,} | {ran / max(lines, 1):.1%} |")
    ran, lines = (sum(both) for both in zip(*rooms.values(), strict=True))
    print(f"| `src` | {lines:,} | {ran / lines:.1%} |")
    of = totals_of_python()
    print(
        f"| `python`, lines | {of['num_statements']:,} | {of['covered_lines'] / of['num_statements']:.1%} |"
    )
    print(
        f"| `python`, branches | {of['num_branches']:,} | {of['covered_branches'] / of['num_branches']:.1%} |"
    )
    raise SystemExit(
        0 if passed else "coverage: a test failed, so its share is less than it could be"
    )


if __name__ == "__main__":
    main()
