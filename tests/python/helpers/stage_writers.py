"""Plans whose stages several processes write at once, for `test_stage.py` and the programs that it runs."""

import os
import time

import tensorquery as tq

SQL = "SELECT id, sha512(cast(id AS varchar)) AS digest FROM t"
HELD = "SELECT held(id) AS id, repeat('-', 250) AS wide FROM t"
"""Rows whose first half fills more than a record batch; with TEST_HOLD set, a process never gets beyond that half."""


def plan_of(path, sql=SQL):
    """The plan over the table at `path`; in every process the same."""
    session = tq.Session()
    session.register_parquet("t", path)
    session.register_udf("held", held, ["int64"], "int64")
    return session.sql(sql)._core.plan(1 << 16, None, True)


def held(ids):
    """The ids. How fast a machine is does not decide whether a stage is still being written."""
    if "TEST_HOLD" in os.environ and ids[-1].as_py() >= 100_000:
        # In one piece: whoever wakes up while the interpreter ends would end it badly.
        time.sleep(600)
    return ids
