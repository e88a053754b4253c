"""Writes where the time of the Python tests goes, by file, into tests/README.md: ``python tests/times.py results.xml``.

The results are pytest's (``--junitxml``). A test's time includes its fixtures, so a server's start counts for the first test
that uses the server.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- times: begin -->", "<!-- times: end -->"
SHOWN = 40


def table(results: Path) -> str:
    """Return the files that take longest, as a table in Markdown."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    suite = ElementTree.parse(results).getroot().find("testsuite")
    for case in suite.iter("testcase"):
        name = case.get("classname", "").replace(".", "/")
        seconds[name] += float(case.get("time", 0))
        tests[name] += 1
    total, number = sum(seconds.values()), sum(tests.values())
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    shown, others = longest[:SHOWN], longest[SHOWN:]
    rest = sum(seconds[name] for name in others)
    lines = [
        f"{number:,} tests took {total:,.0f} seconds together, {float(suite.get('time')):,.0f} by the clock.",
        "",
        "| file | tests | seconds | share |",
        "|---|---:|---:|---:|",
        *(
            f"| `{name}` | {tests[name]} | {seconds[name]:.0f} | {seconds[name] / total:.1%} |"
            for name in shown
        ),
        f"| {len(others)} other files | {sum(tests[name] for name in others):,} | {rest:.0f} | {rest / total:.1%} |",
    ]
    return "\n".join(lines)


def main() -> None:
    """Replace the table between the two marks."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{table(Path(sys.argv[1]))}\n{END}{after}")


if __name__ == "__main__":
    main()
