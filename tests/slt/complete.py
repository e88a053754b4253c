"""`python -m tests.slt.complete FILE…`: put DuckDB's answers into our own `.slt` files; see README.md in this folder.

A query below `skipif duckdb` keeps the rows that stand there: those are by the standard, where DuckDB answers otherwise.
"""

import sys
import tempfile
from pathlib import Path

from .expected import complete
from .judges import Duck, JudgeError
from .records import Query


def main(paths):
    """Complete the files, and say which queries DuckDB has no answer to; returns the exit status."""
    failed = 0
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory() as scratch:
            judge = Duck(Path(scratch))

            def answer(record, judge=judge, path=path):
                nonlocal failed
                if isinstance(record, Query) and "duckdb" in record.skipped_by:
                    return None
                try:
                    if isinstance(record, Query):
                        return judge.ask(record.sql).rows
                    judge.execute(record.sql)
                except JudgeError as error:
                    print(f"{path}:{record.line}: {error}\n{record.sql}", file=sys.stderr)
                    failed = 1
                return None

            path.write_text(complete(path.read_text(encoding="utf-8"), answer), encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
