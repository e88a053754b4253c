"""Our own `.slt` files: their tables in DuckDB, their queries in DuckDB and the loader, both against the rows in the file.

`python -m tests.slt.own [NAME…]` runs them in a process that a test can end: one line of JSON per file that is through.
"""

import json
import os
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorquery as tq

from . import expected
from .judges import Duck
from .parser import Parser
from .product import Product
from .records import Query

FOLDER = Path(__file__).with_name("queries")

MOST_MEMORY = 16 << 30
"""Bytes of address space that may hold data; threads reserve some gigabytes that they never touch."""


@dataclass
class Finding:
    """A query whose rows were not all delivered and right."""

    name: str
    """file:label where the query has a label, else file:line."""
    by: str
    """"judge", "refused" or "wrong"."""
    told: str
    sql: str


def files():
    """The files, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.slt"))}


def records_of(path):
    """The records of a file; DuckDB's `skipif` is kept in them."""
    return Parser(path.read_text(encoding="utf-8"), ["duckdb"], kept=["duckdb"]).parse()


def findings(path, scratch):
    """Run a file, and return a `Finding` for each query that has not its rows, and the number of queries."""
    judge, loader = Duck(scratch), Product(scratch / "tables")
    found, asked = [], 0
    written = None
    for record in records_of(path):
        if not isinstance(record, Query):
            judge.execute(record.sql)
            written = None
            continue
        asked += 1
        if written is None:
            written = judge.tables()
            for name in written:
                loader.put(name, judge.table(name))
        name = f"{path.stem}:{record.label or record.line}"
        if "duckdb" not in record.skipped_by:
            wrong = expected.difference(judge.ask(record.sql).rows, record)
            if wrong:
                found.append(Finding(name, "judge", wrong, record.sql))
        outcome = _ask(loader, record)
        if outcome:
            found.append(Finding(name, *outcome, record.sql))
    loader.close()
    return found, asked


def _ask(loader, record):
    """How the loader's rows differ: ("refused" or "wrong", words), or None."""
    try:
        _, rows = loader.ask(record.sql)
        wrong = expected.difference(rows, record)
        if wrong:
            return "wrong", f"to_arrow: {wrong}"
        # Each rank has its share in order; together they have none.
        rows = loader.load(record.sql)
    except tq.TensorQueryError as error:
        return "refused", str(error)
    wrong = expected.difference(rows, record.unordered())
    return ("wrong", f"loaders: {wrong}") if wrong else None


def main(names):
    """Run the files of these names, or all; returns the exit status."""
    known = files()
    status = 0
    # A query that takes all memory ends this process, and not the machine's others.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    for name in names or known:
        print(json.dumps({"begin": name}), flush=True)
        with tempfile.TemporaryDirectory(prefix="slt-") as scratch:
            os.environ["TENSORQUERY_CACHE"] = f"{scratch}/cache"
            found, asked = findings(known[name], Path(scratch))
        print(
            json.dumps({"file": name, "asked": asked, "findings": [asdict(one) for one in found]}),
            flush=True,
        )
        status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
