"""Promise 1 (docs/promises.md): processes, and ranks of a process group, share stages below a URL."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranks
import stage_builders
import tensorquery as tq
import torchless
from iceberg_servers import fresh
from stage_builders import loader_of, rows

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

ROWS = 1_500_000


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose aggregate takes a while."""
    folder = tmp_path_factory.mktemp("stages")
    rng = np.random.default_rng(4)
    keys, values = rng.integers(0, 400_000, ROWS), rng.integers(0, 9, ROWS)
    pq.write_table(pa.table({"k": keys, "v": values}), folder / "t.parquet")
    return folder / "t.parquet"


def wanted(table):
    rows = pq.read_table(table).group_by("k").aggregate([("k", "count"), ("v", "sum")]).to_pylist()
    return {(row["k"], row["k_count"], row["v_sum"]) for row in rows}


# The emulator of GCS takes no uploads of the kind that object_store makes.
@pytest.fixture(params=["minio", "azure"])
def store(request):
    return request.getfixturevalue(request.param)


@pytest.mark.slow
def test_a_stage_below_a_url(store, table, tmp_path):
    place = f"{store.root}/{fresh('stages')}"
    loader, dataset = loader_of(table, place, store.options)
    got = rows(loader)
    assert set(got) == wanted(table)
    assert got == sorted(got)
    (stage,) = dataset.stages
    assert stage.path.startswith(place)
    loader, dataset = loader_of(table, place, store.options, num_workers=2)
    assert dataset.stages[0].seconds is None
    assert Counter(rows(loader)) == Counter(got)
    (stored,) = tq.list_stages(place, storage_options=store.options)
    assert stored.rows == len(got)
    assert tq.clear_stages(place, storage_options=store.options) >= stage.bytes
    assert tq.list_stages(place, storage_options=store.options) == []


def test_no_secret_is_in_a_stage_or_in_what_is_said_of_it(minio, table):
    place = f"{minio.root}/{fresh('stages')}"
    loader, dataset = loader_of(table, place, minio.options)
    prefix = place.removeprefix(f"{minio.root}/")
    client = minio.client()
    keys = [
        found["Key"]
        for found in client.list_objects_v2(Bucket=minio.bucket, Prefix=prefix)["Contents"]
    ]
    assert any(key.endswith("manifest.json") for key in keys)
    contents = [client.get_object(Bucket=minio.bucket, Key=key)["Body"].read() for key in keys]
    with pytest.raises(tq.StorageError) as refused:
        loader_of(table, f"{place}-other", {**minio.options, "aws_access_key_id": "AKIANOBODY"})
    texts = [
        repr(dataset.stages),
        repr(tq.list_stages(place, storage_options=minio.options)),
        json.dumps(loader.state_dict()),
        str(refused.value),
        repr(refused.value.__cause__),
    ]
    for content in [*contents, *(text.encode() for text in texts)]:
        assert minio.secret.encode() not in content


BUILDER = """
import json, sys
sys.path.insert(0, sys.argv[4])
import stage_builders as here
table, place, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
loader, dataset = here.loader_of(table, place, options)
(stage,) = dataset.stages
print(json.dumps([stage.seconds is not None, stage.digest, len(here.rows(loader))]))
"""


def build(table, place, options, **environment):
    here = str(Path(stage_builders.__file__).parent)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            torchless.HIDDEN + BUILDER,
            str(table),
            place,
            json.dumps(options),
            here,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def outcome(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.slow
def test_of_processes_that_start_at_once_one_builds(minio, table):
    place = f"{minio.root}/{fresh('stages')}"
    processes = [build(table, place, minio.options) for _ in range(3)]
    for process in processes:
        go(process)
    found = [outcome(process) for process in processes]
    assert sum(built for built, _, _ in found) == 1
    assert len({digest for _, digest, _ in found}) == 1
    assert {count for _, _, count in found} == {len(wanted(table))}


@pytest.mark.slow
def test_a_lease_whose_holder_died_is_taken_over(minio, table):
    """The lease is left behind; the next process waits for a sign of life, and then builds."""
    place = f"{minio.root}/{fresh('stages')}"
    victim = build(table, place, minio.options, TEST_HOLD="yes")
    go(victim)
    while not tq.list_stages(place, storage_options=minio.options):
        assert victim.poll() is None
        time.sleep(0.05)
    victim.kill()
    victim.communicate()
    complete = [stage.rows for stage in tq.list_stages(place, storage_options=minio.options)]
    assert complete == [None]
    began = time.monotonic()
    loader, dataset = loader_of(table, place, minio.options)
    assert dataset.stages[0].seconds is not None
    assert set(rows(loader)) == wanted(table)
    # Twenty seconds without a sign of life, and the time of a build.
    assert time.monotonic() - began < 150


# ------------------------------------------------------------------------------------------------
# The ranks of a process group.


def _train(rank, world_size, table, place, ours):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        loader, dataset = loader_of(table, place if ours is None else f"{place}/{ours[rank]}")
        return [stage.seconds is not None for stage in dataset.stages], rows(loader), len(loader)
    finally:
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("ours", [None, [0, 1, 1]])
def test_ranks_share_a_stage_or_build_the_same(table, tmp_path, ours):
    """Through one folder; and, as on machines that share none, through one for each machine."""
    found = ranks.run(_train, 3, str(table), str(tmp_path / "stages"), ours)
    built = [built for (built,), _, _ in found]
    assert sum(built) == (1 if ours is None else 2)
    assert Counter(row for _, part, _ in found for row in part) == Counter(wanted(table))
    assert len({steps for _, _, steps in found}) == 1


def _draw(rank, world_size, table, place):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        session = tq.Session()
        session.register_parquet("t", table)
        tq.create_dataloader(
            "SELECT k, random() AS r FROM t", session=session, stage_dir=f"{place}/{rank}"
        )
        return None
    except tq.DataError as error:
        return str(error)
    finally:
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_whose_stages_differ_are_told_so(table, tmp_path):
    told = ranks.run(_draw, 2, str(table), str(tmp_path))
    assert sum(message is None for message in told) == 1
    (message,) = [message for message in told if message is not None]
    assert "different stages" in message
    assert "stage_dir" in message
