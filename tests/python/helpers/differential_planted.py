"""Faults that are planted to try the differential tests themselves: each must be found within 500 queries.

The loader is never changed. Each fault is planted between the case and the loader, so that what arrives there is what a loader with
the fault would have made of it:

- "an absent null count is trusted": files whose chunks have no count of nulls get a count of 0. A rule that takes an absent count for
  0 leaves out what `IS NULL` asks for; here the file says so, and the loader believes it.
- "a lost DISTINCT": the loader is asked the statement without its first DISTINCT, the judges with it.
- "a limit by statistics": the loader is asked `… (WHERE p IS NOT FALSE LIMIT n) WHERE p` for `WHERE p LIMIT n`. A limit that counts
  the rows of a row group which is thought to match as a whole counts those where p is unknown, too, and then filters them out.

A difference counts only where the same seed has none without the fault.
"""

import re
from dataclasses import replace
from pathlib import Path

import differential
from differential_judges import Judges, duck_session
from differential_sources import NULL_COUNT, STATISTICS_FIELD
from parquet_footers import COLUMNS, GROUPS, METADATA, STRUCT, ParquetFile

I64 = 6
"""Of Thrift's compact protocol."""

MOST = 500
"""Queries within which a fault must be found."""


class Plant:
    """No fault; the base of all faults."""

    def rewritten(self, statement):
        """The statement that the loader is asked instead."""
        return statement

    def file(self, path):
        """Change a Parquet file before it is registered."""


class TrustedNullCount(Plant):
    """An absent null count is trusted."""

    name = "an absent null count is trusted"

    def file(self, path):
        """Write 0 where the count is absent."""
        file = ParquetFile(Path(path))
        for group in file.footer[GROUPS][1][1]:
            for chunk in group[COLUMNS][1][1]:
                metadata = chunk[METADATA][1]
                statistics = metadata.setdefault(STATISTICS_FIELD, (STRUCT, {}))[1]
                statistics.setdefault(NULL_COUNT, (I64, 0))
        file.write()


class LostDistinct(Plant):
    """A DISTINCT does nothing."""

    name = "a lost DISTINCT"

    def rewritten(self, statement):
        """The statement without its first DISTINCT."""
        return replace(
            statement, sql=re.sub(r"SELECT DISTINCT (?!ON)", "SELECT ", statement.sql, count=1)
        )


class LimitByStatistics(Plant):
    """Rows that are thought to match are counted towards the limit."""

    name = "a limit by statistics"

    def rewritten(self, statement):
        """The statement with its limit below the filter, over rows that may match."""
        if statement.some_of is None:
            return statement
        found = re.fullmatch(r"SELECT (.+) FROM (\w+) AS t WHERE (.+)", statement.some_of)
        if not found:
            return statement
        values, table, where = found.groups()
        near = f"SELECT * FROM {table} AS t WHERE ({where}) IS NOT FALSE LIMIT {statement.most} OFFSET {statement.skipped}"
        return replace(
            statement, sql=f"SELECT {values} FROM ({near}) AS t WHERE {where}", head=None
        )


FAULTS = (TrustedNullCount(), LostDistinct(), LimitByStatistics())


def queries_until_found(plant, first_seed=0, most=MOST):
    """The number of queries until a difference shows a fault, and the difference; None and nothing if none does."""
    compared, seed = 0, first_seed
    with duck_session() as duck:
        judges = Judges(duck)
        while compared < most:
            planted = differential.run_seed(seed, judges, plant)
            if planted.differences:
                known = differential.run_seed(seed, judges).differences
                new = len(planted.differences) - len(known)
                if new > 0:
                    text = next(one for one in planted.differences if one not in known)
                    return compared + planted.compared, text
            compared += planted.compared
            seed += 1
    return None, ""


def find_all(first_seed):
    """Plant each fault, and say when it is found; the exit status of `--planted`."""
    lost = 0
    for plant in FAULTS:
        queries, text = queries_until_found(plant, first_seed)
        if queries is None:
            lost += 1
            print(f"{plant.name}: NOT found within {MOST} queries")
        else:
            print(f"{plant.name}: found within {queries} queries\n  {text[:400]}\n", flush=True)
    return int(bool(lost))
