"""Promises 1, 5 and 7 (docs/promises.md) with JAX: its arrays hold each row's values unchanged on the devices of a mesh, of one
process or several; a state counts what the loop received, and not what was copied ahead. Programs run without torch."""

import json
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

import pages
import support
import tensorquery as tq
import torchless
from pages import programs, snippets
from servers.process import free_port

pytestmark = [
    pytest.mark.slow,
]

ROWS = 403


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("jax")
    ids = np.arange(ROWS)
    columns = {
        "id": ids,
        "x": ids / ROWS,
        "small": pa.array(ids % 100, pa.int8()),
        "half": pa.array((ids % 50).astype("f2")),
        "flag": ids % 2 == 0,
        "s": [f"w{number % 7}" for number in ids],
        "tags": pa.array([[*range(number % 4)] for number in ids], pa.list_(pa.int32())),
        "vector": pa.array([[number, -number] for number in ids], pa.list_(pa.float32(), 2)),
        "big": ids * 2**33,
    }
    support.write_parquet(found / "t", pa.table(columns), files=4, row_group=17)
    return found


PROLOGUE = """
import importlib.util, json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
import tensorquery as tq
assert importlib.util.find_spec("torch") is None

def told(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None
"""


def run(folder, code, *arguments, variables=None):
    variables = {**torchless.FOUR_DEVICES, **(variables or {})}
    code = PROLOGUE + textwrap.dedent(code)
    return torchless.run(folder, code, *arguments, packages=torchless.JAX, variables=variables)


def test_values_types_and_texts(folder):
    code = """
    options = {"output_format": "jax", "batch_size": 50}
    loader, dataset = tq.create_dataloader("SELECT * EXCEPT (big) FROM 't'", **options)
    assert type(loader) is tq.QueryLoader
    ids = []
    for batch in loader:
        ids += batch["id"].tolist()
        assert all(isinstance(batch[name], jax.Array) for name in ("id", "x", "small", "half", "flag", "vector"))
        assert isinstance(batch["s"], list)
        assert isinstance(batch["tags"], tq.Jagged) and isinstance(batch["tags"].values, jax.Array)
        assert batch["vector"].shape == (len(batch["id"]), 2)
        assert batch["vector"][:, 0].tolist() == batch["id"].tolist() == (-batch["vector"][:, 1]).tolist()
        assert batch["flag"].tolist() == [number % 2 == 0 for number in batch["id"].tolist()]
    own = [[number for batch in dataset for number in batch["id"].tolist()]]
    assert isinstance(next(iter(dataset))["id"], jax.Array)
    dtypes = {name: str(batch[name].dtype) for name in ("id", "x", "small", "half", "flag", "vector")}
    cast, _ = tq.create_dataloader(
        "SELECT x, small FROM 't'",
        transform=lambda batch: {"x": batch["x"].astype(jnp.bfloat16), "parts": [batch["small"]], "name": "n", "one": np.float32(1)},
        **options,
    )
    made = next(iter(cast))
    assert made["x"].dtype == jnp.bfloat16 and isinstance(made["parts"][0], jax.Array) and made["name"] == "n"
    import pyarrow as pa
    packs, _ = tq.create_dataloader("SELECT tags FROM 't'", output_format="jax", batch_size=4, pack=tq.Pack(columns=["tags"], length=16))
    pack = next(iter(packs))
    assert isinstance(pack["tags"], jax.Array) and pack["tags"].shape == (4, 16) and type(pack["max_seqlen"]) is int

    def picky(batch):
        if (batch["id"] == 7).any():
            raise ValueError("seven")
        return batch

    skipping, _ = tq.create_dataloader("SELECT id FROM 't'", transform=picky, on_transform_error="skip", **options)
    left = [number for batch in skipping for number in batch["id"].tolist() if isinstance(batch["id"], jax.Array)]
    assert sorted(left) == [number for number in range(403) if number != 7]
    alone = tq.to_tensors(pa.table({"a": [1, 2]}), output_format="jax")["a"]
    assert isinstance(alone, jax.Array) and alone.tolist() == [1, 2]
    print(json.dumps([ids, own[0], dtypes]))
    """
    ids, own, dtypes = json.loads(run(folder, code))
    assert ids == own == [*range(ROWS)]
    assert dtypes == {"id": "int32", "x": "float32", "small": "int8", "half": "float16", "flag": "bool", "vector": "float32"}  # fmt: skip


def test_no_value_is_cut_off(folder):
    """JAX alone makes 2**33 a 0. Here it is an error that names column, value and fix; with x64 on it is delivered."""
    code = """
    def read(sql, **options):
        loader, _ = tq.create_dataloader(sql, output_format="jax", batch_size=50, **options)
        return [batch for batch in loader]

    assert int(jax.device_put(np.array([2**33]))[0]) == 0, "JAX has changed: it may do this itself now"
    found = [
        told(lambda: read("SELECT big FROM 't'")),
        told(lambda: read("SELECT CAST(big AS BIGINT UNSIGNED) AS u FROM 't'")),
        told(lambda: read("SELECT [id, big] AS both FROM 't'", pad={"both": 0})),
        told(lambda: read("SELECT x * 1e300 AS huge FROM 't'")),
        told(lambda: read("SELECT CASE WHEN id = 3 THEN 'NaN' WHEN id = 4 THEN 'inf' ELSE '1e38' END::DOUBLE AS x FROM 't'")),
        told(lambda: read("SELECT id - 2147483648 AS low, id + 2147483647 - 402 AS high FROM 't'")),
    ]
    jax.config.update("jax_enable_x64", True)
    wide = [batch["big"] for batch in read("SELECT big FROM 't'")]
    assert all(each.dtype == jnp.int64 for each in wide)
    print(json.dumps([found, [number for each in wide for number in each.tolist()]]))
    """
    found, wide = json.loads(run(folder, code))
    for (kind, message), name in zip(found[:4], ("big", "u", "both", "huge"), strict=True):
        assert kind == "DataError"
        assert f"batch['{name}'] has the value" in message
        assert "jax_enable_x64" in message
    assert "8589934592" in found[0][1]
    assert found[4] is found[5] is None
    assert wide == [number * 2**33 for number in range(ROWS)]


def test_a_mesh_divides_rows(folder):
    code = """
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    found = {}
    for name, spec, pieces in (("data", P("data"), 2), ("both", P(("data", "model")), 4), ("none", P(), 1), ("longer", P("data", None), 2)):
        rows = NamedSharding(mesh, spec)
        loader, dataset = tq.create_dataloader(
            "SELECT id, vector, s FROM 't'", output_format="jax", sharding=rows, batch_size=40, remainder="drop", shuffle=True
        )
        assert (dataset.rank, dataset.world_size) == (0, 1)
        batches = list(loader)
        assert len(batches) == len(loader) == 10
        for batch in batches:
            assert batch["id"].sharding.is_equivalent_to(rows, 1) and batch["vector"].sharding.is_equivalent_to(rows, 2)
            assert {shard.data.shape[0] for shard in batch["id"].addressable_shards} == {40 // pieces}
        found[name] = [number for batch in batches for number in batch["id"].tolist()]
    device = jax.devices()[2]
    loader, _ = tq.create_dataloader("SELECT id FROM 't'", output_format="jax", sharding=SingleDeviceSharding(device), batch_size=40)
    batches = list(loader)
    assert all(batch["id"].devices() == {device} for batch in batches)
    found["one"] = [number for batch in batches for number in batch["id"].tolist()]
    padded, dataset = tq.create_dataloader(
        "SELECT id, tags FROM 't'", output_format="jax", sharding=NamedSharding(mesh, P("data")), batch_size=40, remainder="pad",
        pad={"tags": (0, 3)},
    )
    found["pad"] = [number for batch in padded for number in batch["id"].tolist()]
    print(json.dumps(found))
    """
    found = json.loads(run(folder, code))
    assert found["data"] == found["both"] == found["none"] == found["longer"]
    assert len({*found["data"]}) == len(found["data"]) == 400
    assert found["one"] == [*range(ROWS)]
    assert {*found["pad"]} == {*range(ROWS)}
    assert len(found["pad"]) == 440


def test_what_cannot_be_divided_is_refused(folder):
    code = """
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    rows = NamedSharding(mesh, P(("data", "model")))
    options = {"output_format": "jax", "sharding": rows, "batch_size": 40, "remainder": "drop"}

    def make(sql="SELECT id FROM 't'", read=False, **others):
        loader, _ = tq.create_dataloader(sql, **{**options, **others})
        return list(loader) if read else None

    print(json.dumps([
        told(lambda: make(batch_size=42)),
        told(lambda: make(remainder="even")),
        told(lambda: make(remainder="uneven")),
        told(lambda: make("SELECT id, tags FROM 't'")),
        told(lambda: make("SELECT tags FROM 't'", pack=tq.Pack(columns=["tags"], length=8))),
        told(lambda: make(output_format="numpy")),
        told(lambda: make(sharding="data")),
        told(lambda: make(sharding=NamedSharding(mesh, P("data", "model")))),
        told(lambda: make(transform=lambda batch: {"x": np.zeros(7, "f4")}, read=True)),
        told(lambda: make(remainder="even", sharding=NamedSharding(mesh, P()), read=True)),
        told(lambda: make("SELECT id, tags FROM 't'", transform=lambda batch: {"id": batch["id"]}, read=True)),
    ]))
    """
    *refused, whole, made = json.loads(run(folder, code))
    wanted = [
        ("ConfigError", "batch_size=42", "44"),
        ("ConfigError", "remainder='even'", "drop"),
        ("ConfigError", "remainder='uneven'", "pad"),
        ("ConfigError", "'tags'", "pad={'tags': 0}"),
        ("ConfigError", "pack=", "sharding="),
        ("ConfigError", "sharding=", "'numpy'"),
        ("ConfigError", "sharding='data'", "NamedSharding"),
        ("ConfigError", "divides more than the rows", "PartitionSpec"),
        ("DataError", "batch['x'] has shape (7,)", "4 pieces"),
    ]
    assert len(refused) == len(wanted)
    for (kind, message), (expected, *words) in zip(refused, wanted, strict=True):
        assert kind == expected
        assert all(word in message for word in words), message
    assert whole is None
    assert made is None


def test_a_state_counts_what_the_loop_received(folder):
    """One batch is always copied ahead; a resume on another topology gets each other row once."""
    code = """
    def load(rank=0, world_size=1, size=32, **options):
        return tq.create_dataloader(
            "SELECT id FROM 't' WHERE id % 5 <> 0", output_format="jax", batch_size=size, shuffle=True, rank=rank,
            world_size=world_size, **options
        )

    copied = []
    real = jax.device_put
    jax.device_put = lambda *arguments: copied.append(1) or real(*arguments)
    for stop in range(1, 10):
        loader, dataset = load()
        copied.clear()
        batches = iter(loader)
        seen = [number for _ in range(stop) for number in next(batches)["id"].tolist()]
        # The first comes at once; then one more is under way.
        assert len(copied) == (1 if stop == 1 else stop + 1), (stop, len(copied))
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["step"] == stop and dataset.metrics()["rows"] == len(seen) == 32 * stop
        again, _ = load()
        again.load_state_dict(state)
        same = [number for batch in again for number in batch["id"].tolist()]
        assert same == [number for batch in batches for number in batch["id"].tolist()]
        others = []
        for rank in range(3):
            other, _ = load(rank, 3, 7)
            other.load_state_dict(state)
            others += [number for batch in other for number in batch["id"].tolist()]
        wanted = [number for number in range(403) if number % 5]
        assert sorted(seen + others) == sorted(seen + same) == wanted
    print("done")
    """
    assert run(folder, code) == "done\n"


DISTRIBUTED = """
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], num_processes=int(sys.argv[2]), process_id=int(sys.argv[3]))
"""


def run_processes(folder, code, world_size, devices=2):
    """Run a program in processes of one jax.distributed."""
    address = f"127.0.0.1:{free_port()}"
    flags = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    processes = [
        torchless.start(
            folder, PROLOGUE + DISTRIBUTED + textwrap.dedent(code), address, world_size, rank,
            packages=torchless.JAX, variables=flags,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    try:
        # gloo says on stdout that it has connected.
        return [json.loads(torchless.finish(process).splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_processes_of_jax_distributed(folder):
    """Two processes with two devices each: ranks come from JAX, global arrays hold the rows of both, and a jitted sum over the
    mesh, which needs both, sees each row once."""
    code = """
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, P("data"))
    alone, dataset = tq.create_dataloader("SELECT id FROM 't'", output_format="jax", batch_size=30)
    assert (dataset.rank, dataset.world_size) == (jax.process_index(), 2)
    assert dataset.topology.source == "jax.distributed"
    own = [number for batch in alone for number in batch["id"].tolist()]

    loader, dataset = tq.create_dataloader(
        "SELECT id, vector FROM 't' WHERE id % 5 <> 0", output_format="jax", sharding=rows, batch_size=20, remainder="drop", shuffle=True
    )
    total = jax.jit(lambda batch: (batch["id"].sum(), batch["vector"][:, 0].sum()))
    mine, sums = [], []
    for batch in loader:
        assert batch["id"].shape == (40,) and batch["vector"].shape == (40, 2)
        mine += [number for shard in batch["id"].addressable_shards for number in shard.data.tolist()]
        sums.append([float(each) for each in total(batch)])
    state = loader.state_dict()
    other = told(lambda: tq.create_dataloader(
        "SELECT id FROM 't'", output_format="jax", sharding=rows, remainder="drop", batch_size=20, rank=0, world_size=1
    ))
    print(json.dumps([own, mine, sums, len(loader), other]))
    """
    first, second = run_processes(folder, code, 2)
    assert sorted(first[0] + second[0]) == [*range(ROWS)]
    seen = first[1] + second[1]
    assert len(seen) == len({*seen}) == 320
    assert all(number % 5 for number in seen)
    assert first[2] == second[2]
    assert sum(total for total, _ in first[2]) == sum(total for _, total in first[2]) == sum(seen)
    assert first[3] == second[3] == len(first[2]) == 8
    assert first[4][0] == "ConfigError"
    assert "rank=0, world_size=1 contradict sharding=" in first[4][1]


def test_processes_that_hold_the_same_rows_read_the_same(folder):
    """Two processes of two devices as a mesh of two by two, whose second axis is the model's and goes across processes."""
    code = """
    devices = np.array(jax.devices()).reshape(2, 2).T
    mesh = Mesh(devices, ("data", "model"))
    rows = NamedSharding(mesh, P("data"))
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM 't'", output_format="jax", sharding=rows, batch_size=20, remainder="drop", shuffle=True
    )
    found = []
    for batch in loader:
        assert batch["id"].shape == (20,)
        found.append([shard.data.tolist() for shard in batch["id"].addressable_shards])
    print(json.dumps([dataset.rank, dataset.world_size, found]))
    """
    first, second = run_processes(folder, code, 2)
    assert first == second
    assert first[:2] == [0, 1]
    assert len({number for batch in first[2] for piece in batch for number in piece}) == 400


def test_a_loader_that_was_made_before_the_processes_met_does_not_go_on_alone(folder):
    code = """
    loader, _ = tq.create_dataloader("SELECT id FROM 't'", output_format="numpy")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[3]))
    print(json.dumps(told(lambda: next(iter(loader)))))
    """
    address = f"127.0.0.1:{free_port()}"
    processes = [
        torchless.start(folder, PROLOGUE + textwrap.dedent(code), address, 2, rank, packages=torchless.JAX, variables={"JAX_PLATFORMS": "cpu"})
        for rank in range(2)
    ]  # fmt: skip
    for kind, message in [json.loads(torchless.finish(process)) for process in processes]:
        assert kind == "ConfigError"
        assert "jax.distributed has 2 ranks, but the loader was made before" in message


def test_with_torch_and_workers(folder, tmp_path):
    """Where torch is installed, too, worker processes send NumPy arrays, and the training process places them."""
    code = textwrap.dedent("""
    import json
    import sys

    import numpy as np

    import tensorquery as tq

    def shift(batch):
        assert type(batch["id"]) is np.ndarray and "jax" not in sys.modules
        return {"id": batch["id"] + 1}

    def told(call):
        try:
            call()
        except Exception as error:
            return [type(error).__name__, str(error)]
        return None

    if __name__ == "__main__":
        import multiprocessing

        import jax
        import torch

        # Whose workers are forked from a process without threads.
        multiprocessing.set_forkserver_preload(["torch"])
        options = {"output_format": "jax", "batch_size": 30}
        workers = {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True, **options}
        found = []
        for others in ({}, {"transform": shift}):
            loader, dataset = tq.create_dataloader("SELECT id FROM 't'", **workers, **others)
            assert isinstance(loader, torch.utils.data.DataLoader)
            batches = iter(loader)
            seen = [next(batches)["id"] for _ in range(3)]
            state = loader.state_dict()
            seen += [batch["id"] for batch in batches]
            assert all(isinstance(each, jax.Array) for each in seen)
            found.append(sorted(number for each in seen for number in each.tolist()))
        rest, _ = tq.create_dataloader("SELECT id FROM 't'", **options)
        rest.load_state_dict(state)
        first = [number - 1 for each in seen[:3] for number in each.tolist()]
        found.append(sorted(first + [number for batch in rest for number in batch["id"].tolist()]))
        mine = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver")
        device = told(lambda: tq.create_dataloader("SELECT id FROM 't'", output_format="jax", device="cuda"))
        print(json.dumps([found, told(lambda: list(mine)), device]))
    """)
    program = tmp_path / "workers.py"
    program.write_text(code)
    (tmp_path / "t").symlink_to(folder / "t")
    done = pages.run([sys.executable, program], tmp_path, {"JAX_PLATFORMS": "cpu"}, 300)
    (plain, shifted, resumed), refused, device = json.loads(done.stdout)
    assert plain == resumed == [*range(ROWS)]
    assert shifted == [*range(1, ROWS + 1)]
    assert 'output_format="numpy"' in refused[1]
    assert device[0] == "ConfigError"
    assert "sharding=" in device[1]


def test_the_loop_of_the_page_runs(folder, tmp_path):
    page = "docs/without-torch.md"
    program = tmp_path / "jax_loop.py"
    program.write_text(programs(page)["jax_loop.py"])
    first = snippets(page)[0]
    torchless.run(tmp_path, first, packages=torchless.ARROW)
    out = torchless.run(tmp_path, program, packages=torchless.JAX, variables=torchless.FOUR_DEVICES)
    assert out == "y = 3.00 x + 1.00 on 4 devices\n"


def test_options_need_jax_only_when_it_is_asked_for():
    with pytest.raises(tq.ConfigError, match='sharding= goes with output_format="jax"'):
        tq.create_dataloader("SELECT 1", sharding=object())
