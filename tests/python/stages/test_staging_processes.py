"""Processes that build one stage together, and die: one builds, the others wait, and no partial stage becomes
visible."""

import json
import os
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
import torchless
from effort import LONG

pytestmark = pytest.mark.slow

BUILDER = """
import json, os, pathlib, sys, time
import tensorquery as tq
path, stages, go = sys.argv[1:]
pathlib.Path(f"{go}.{os.getpid()}").touch()
while not pathlib.Path(go).exists():
    time.sleep(0.002)
calls = 0
def held(keys):
    # From the call on that TEST_HOLD counts it never returns, however fast the machine is. In one piece: whoever wakes
    # up while the interpreter ends would end it badly.
    global calls
    calls += 1
    if calls > float(os.environ.get("TEST_HOLD", "inf")):
        pathlib.Path(os.environ["TEST_HELD"]).touch()
        time.sleep(600)
    return keys
session = tq.Session()
session.register_parquet("t", path)
session.register_udf("held", held, ["int64"], "int64")
loader, dataset = tq.create_dataloader(
    "SELECT k, count(*) AS n, sum(v) AS s, max(w) AS w FROM (SELECT held(k) AS k, v, w FROM t) GROUP BY k ORDER BY k",
    session=session, stage_dir=stages, output_format="dict", batch_size=4096,
)
(stage,) = dataset.stages
total = [0, 0]
for batch in loader:
    total[0] += sum(batch["n"]); total[1] += sum(batch["s"])
print(json.dumps({"built": stage.seconds is not None, "seconds": stage.seconds, "rows": stage.rows, "digest": stage.digest, "total": total}))
"""


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """A table whose aggregate takes a good part of a second here; no test relies on that."""
    folder = tmp_path_factory.mktemp("heavy")
    rng = np.random.default_rng(2)
    for number in range(4):
        rows = 150_000
        table = pa.table(
            {
                "k": rng.integers(0, 100_000, rows),
                "v": rng.integers(0, 9, rows),
                "w": pa.array([f"word {i}" for i in rng.integers(0, 10**6, rows)]),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


def build(table, stages, go, **environment):
    # Without torch, whose import takes longer than the stage.
    folder = stages.parent
    return torchless.start(folder, BUILDER, table, stages, go, variables=environment)


def build_held(table, stages, go, calls):
    """A builder that stops after so many of its 70 or so batches; returned once it has got there."""
    mark = stages.with_name(f"{stages.name}.held")
    builder = build(table, stages, go, TEST_HOLD=str(calls), TEST_HELD=str(mark))
    while not mark.exists():
        assert builder.poll() is None, builder.communicate()
        time.sleep(0.01)
    assert list(stages.glob("queries/*.lock"))
    return builder


def waiting(go):
    return len(list(go.parent.glob(f"{go.name}.*")))


def outcome(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)


def test_of_four_processes_that_start_at_once_one_builds(heavy, tmp_path):
    go = tmp_path / "go"
    processes = [build(heavy, tmp_path / "stages", go) for _ in range(4)]
    while waiting(go) < 4:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    go.touch()
    found = [outcome(process) for process in processes]
    assert sum(one["built"] for one in found) == 1
    assert len({one["digest"] for one in found}) == 1
    assert {one["total"][0] for one in found} == {600_000}


def test_a_killed_builder_leaves_nothing_half_visible(heavy, tmp_path):
    """SIGKILL in the middle, and at moments all over the build; the next process takes over, and its rows are right."""
    go = tmp_path / "go"
    go.touch()
    whole = outcome(build(heavy, tmp_path / "whole", go))
    rng = np.random.default_rng(int(os.environ.get("TENSORQUERY_SEED", "3")))
    for turn, calls in enumerate((0, 50, *[None] * (4 if LONG else 2))):
        stages = tmp_path / f"stages{turn}"
        if calls is not None:
            victim = build_held(heavy, stages, go, calls)
        else:
            victim = build(heavy, stages, go)
            while victim.poll() is None and not list(stages.glob("queries/*.lock")):
                time.sleep(0.005)
            time.sleep(float(rng.uniform(0, whole["seconds"])))
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        complete = [stage for stage in tq.list_stages(stages) if stage.rows is not None]
        assert calls is None or not complete
        found = outcome(build(heavy, stages, go))
        assert found["built"] == (not complete)
        for name in ("rows", "digest", "total"):
            assert found[name] == whole[name]


def test_ctrl_c_ends_a_build(heavy, tmp_path):
    go = tmp_path / "go"
    go.touch()
    stages = tmp_path / "stages"
    builder = build_held(heavy, stages, go, 35)
    builder.send_signal(signal.SIGINT)
    _, err = builder.communicate(timeout=120)
    assert "KeyboardInterrupt" in err
    assert [stage.rows for stage in tq.list_stages(stages) if stage.rows is not None] == []
    assert outcome(build(heavy, stages, go))["built"]


def test_who_waits_takes_over_where_the_builder_dies(heavy, tmp_path):
    go = tmp_path / "go"
    go.touch()
    stages = tmp_path / "stages"
    builder = build_held(heavy, stages, go, 35)
    try:
        waiter = build(heavy, stages, go)
        time.sleep(2)
        assert waiter.poll() is None, waiter.communicate()
    finally:
        builder.kill()
    builder.communicate()
    found = outcome(waiter)
    assert found["total"][0] == 600_000
