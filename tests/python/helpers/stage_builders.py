"""A loader over a stage in a store, for `test_staging_stores.py` and the programs that it runs."""

import os
import time

import tensorquery as tq

SQL = "SELECT k, count(*) AS n, sum(v) AS s FROM (SELECT held(k) AS k, v FROM t) GROUP BY k ORDER BY k"


def loader_of(table, place, options=None, **more):
    session = tq.Session(storage_options=options)
    session.register_parquet("t", str(table), storage_options={})
    session.register_udf("held", held, ["int64"], "int64")
    more = {"batch_size": 5000, "output_format": "dict", **more}
    return tq.create_dataloader(SQL, session=session, stage_dir=place, **more)


def held(keys):
    """The keys; a process whose environment has TEST_HOLD never finishes a stage, however fast the machine is."""
    if "TEST_HOLD" in os.environ:
        time.sleep(600)
    return keys


def rows(loader):
    return [row for batch in loader for row in zip(*batch.values(), strict=True)]
