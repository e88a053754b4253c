"""Measures loaders against each other and against the decode limit, in one run: ``make bench``.

Ends with the targets met and missed, and a status other than zero when one is missed or could not be measured.
``benches/README.md`` says what is measured and how; `compare` holds the parts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from compare.bench import Bench
from compare.loaders import PEERS
from compare.machine import PACKAGES, build, load, machine, use_cores
from compare.report import HEAD, print_verdicts
from compare.turns import FailedError
from compare.works import WORKS
from data.once import DATA


def main() -> None:
    """Parse the command line, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WORKS, nargs="+", default=list(WORKS))
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each (default 5)")
    parser.add_argument(
        "--budget",
        type=float,
        default=10.0,
        help="seconds after which a loader is broken off; its rate until then counts (default 10)",
    )
    parser.add_argument("--quick", action="store_true", help="one run of each, budgets of 2 s: no figures to keep")  # fmt: skip
    parser.add_argument("--without", choices=PEERS, nargs="+", default=[], help="peers to leave out")  # fmt: skip
    parser.add_argument("--cores", type=int, default=2, help="cores to use (default 2)")
    parser.add_argument("--out", type=Path, default=DATA / "figures.json")
    parser.add_argument("--plot", type=Path, help="where to draw the ratios, a PNG file")
    options = parser.parse_args()
    use_cores(options.cores)
    repeats, budget = (1, 2.0) if options.quick else (options.repeats, options.budget)
    bench = Bench(repeats, budget, options.cores, frozenset(options.without))
    about = f"{machine(PACKAGES)}; tensorquery: {build()}"
    before = load()
    print(f"{about}; {before} before\n\n{HEAD}", flush=True)
    for bench.work in options.only:
        try:
            WORKS[bench.work](bench)
        except FailedError as error:
            # An hour of other figures is not lost for it; it counts as a target missed.
            bench.target(f"{bench.work}: measured to the end", None, at_least=1, note=str(error))
    print(f"\n{load()} after\n")
    found = {"machine": about, "before": before, "after": load(), "repeats": repeats}
    options.out.write_text(json.dumps({**found, **bench.as_json()}, indent=1))
    if options.plot:
        from compare.plot import draw

        draw(bench, options.plot)
    raise SystemExit(0 if print_verdicts(bench.verdicts) else 1)


if __name__ == "__main__":
    main()
