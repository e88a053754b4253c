"""Rank and world size come from one named source, and a half-set world is an error, never world size 1."""

import logging
import multiprocessing
import os
import subprocess
import sys

import pytest

from tensorquery._util import cpus
from tensorquery.distributed import topology
from tensorquery.distributed.topology import Topology, detect
from tensorquery.errors import ConfigError


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "HOROVOD_", "LOCAL_", "MASTER_")) or name in (
            "RANK",
            "WORLD_SIZE",
        ):
            monkeypatch.delenv(name)
    return monkeypatch


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
HOROVOD = {
    "HOROVOD_RANK": "2",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, None, 1, "default: no launcher found")),
        (TORCHRUN, (3, 8, 1, 2, "torchrun environment")),
        (HOROVOD, (2, 4, 0, 2, "Horovod environment")),
        (OPEN_MPI, (5, 6, 2, 3, "Open MPI environment")),
        (SLURM, (5, 7, 1, 2, "SLURM environment")),
        ({**SLURM, "SLURM_NODEID": "3", "SLURM_PROCID": "6"}, (6, 7, 1, 1, "SLURM environment")),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, (5, 6, 1, 2, "SLURM environment")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, None, 1, "torchrun environment")),
        ({**SLURM, **OPEN_MPI, **HOROVOD, **TORCHRUN}, (3, 8, 1, 2, "torchrun environment")),
        ({**SLURM, **OPEN_MPI, **HOROVOD}, (2, 4, 0, 2, "Horovod environment")),
        ({**SLURM, **OPEN_MPI}, (5, 6, 2, 3, "Open MPI environment")),
    ],
)
def test_launchers_in_their_order(bare_environment, caplog, environment, expected):
    for name, value in environment.items():
        bare_environment.setenv(name, value)
    with caplog.at_level(logging.INFO, logger="tensorquery"):
        found = detect()
    assert found == Topology(*expected)
    assert expected[-1] in caplog.text


@pytest.mark.parametrize(
    "environment",
    [
        # salloc's shell: counts, but no task.
        {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"},
        # A batch script: task 0 of nothing.
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"},
        # Both again under a newer Slurm, as its pseudo steps.
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"},
    ],
)
def test_a_slurm_allocation_is_not_a_task(bare_environment, environment):
    for name, value in environment.items():
        bare_environment.setenv(name, value)
    assert (detect().rank, detect().world_size) == (0, 1)


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"RANK": "0"}, ["RANK='0'", "WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE='2'", "RANK"]),
        ({"RANK": "", "WORLD_SIZE": "2"}, ["RANK=''"]),
        ({"RANK": "x", "WORLD_SIZE": "2"}, ["RANK='x'"]),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, ["RANK='-1'"]),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ["WORLD_SIZE=0"]),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, ["LOCAL_WORLD_SIZE=0"]),
        ({"HOROVOD_RANK": "0"}, ["HOROVOD_RANK", "HOROVOD_SIZE"]),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"]),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, ["SLURM_PROCID", "SLURM_NTASKS"]),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(y3)"}, ["SLURM_STEP_TASKS_PER_NODE"]),
    ],
)
def test_half_set_or_malformed_environment_is_an_error(bare_environment, environment, names):
    for name, value in environment.items():
        bare_environment.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        detect()
    for name in names:
        assert name in str(caught.value)


def test_explicit_values(bare_environment):
    bare_environment.setenv("RANK", "1")  # explicit values win, even over a broken environment
    assert detect(2, 4) == Topology(2, 4, None, 1, "explicit")
    for arguments in ({"rank": 0}, {"world_size": 2}):
        with pytest.raises(ConfigError, match="come together or not at all"):
            detect(**arguments)
    with pytest.raises(ConfigError, match=r"rank 4 must be in 0\.\.4 \(world_size is 4"):
        detect(4, 4)
    for bad in (-1, 1.0, True, "0"):
        with pytest.raises(ConfigError, match="rank="):
            detect(bad, 4)
    with pytest.raises(ConfigError, match="world_size=0"):
        detect(0, 0)


@pytest.mark.slow
def test_torch_is_never_imported():
    code = "import sys; from tensorquery.distributed.topology import detect; detect(); assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_group_needs_an_initialised_torch():
    with pytest.raises(ConfigError, match="init_process_group"):
        detect(process_group=object())
    with pytest.raises(ConfigError, match="init_process_group"):
        detect(device_mesh=object())
    with pytest.raises(ConfigError, match="give one of them"):
        detect(process_group=object(), device_mesh=object())


# --- real process groups: gloo in four spawned processes ---


def _message(**arguments):
    try:
        detect(**arguments)
    except ConfigError as error:
        return str(error)
    return "no error"


def _member(rank, world_size, init_file, results):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{init_file}", rank=rank, world_size=world_size
    )
    try:
        evens = dist.new_group([0, 2])
        # A ragged order of ranks inside a group, to tell the group rank from the global one.
        tail = dist.new_group([1, 2, 3])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        found = {
            "global": detect(),
            "explicit_same": detect(rank, world_size),
            "explicit_other": _message(rank=0, world_size=2),
            "mesh_dp": detect(device_mesh=mesh["dp"]),
            "mesh_tp": detect(device_mesh=mesh["tp"]),
            "mesh_dp_group": detect(process_group=mesh.get_group("dp")),
            "mesh_2d": _message(device_mesh=mesh),
            "mesh_flat": detect(device_mesh=mesh["dp", "tp"]._flatten("all")),
            "explicit_mesh": detect(rank // 2, 2, device_mesh=mesh["dp"]),
            "explicit_mesh_wrong": _message(
                rank=rank, world_size=world_size, device_mesh=mesh["dp"]
            ),
            "evens": detect(process_group=evens)
            if rank in (0, 2)
            else _message(process_group=evens),
            "tail": detect(process_group=tail) if rank else _message(process_group=tail),
            "world": detect(process_group=dist.group.WORLD),
            "bad_group": _message(process_group="dp"),
            "bad_mesh": _message(device_mesh="dp"),
        }
        os.environ.update(RANK="0", WORLD_SIZE="1")  # the group wins over the environment
        found["over_environment"] = detect()
        results.put((rank, found))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    pytest.importorskip("torch")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    init_file = tmp_path_factory.mktemp("gloo") / "init"
    processes = [
        context.Process(target=_member, args=(rank, 4, init_file, results)) for rank in range(4)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=240) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert sorted(found) == [0, 1, 2, 3]
    return found


@pytest.mark.slow
def test_torch_distributed(members):
    for rank, found in members.items():
        for name in ("global", "over_environment"):
            assert (found[name].rank, found[name].world_size) == (rank, 4)
            assert found[name].source == "torch.distributed"
        assert (found["explicit_same"].rank, found["explicit_same"].world_size) == (rank, 4)
        assert "contradict torch.distributed" in found["explicit_other"]
        assert 'process_group=group or device_mesh=mesh["dp"]' in found["explicit_other"]


@pytest.mark.slow
def test_data_parallel_ranks_that_are_not_global(members):
    for rank, found in members.items():
        for name in ("mesh_dp", "mesh_dp_group", "explicit_mesh"):
            assert (found[name].rank, found[name].world_size) == (rank // 2, 2)
        assert (found["mesh_tp"].rank, found["mesh_tp"].world_size) == (rank % 2, 2)
        assert (found["mesh_flat"].rank, found["mesh_flat"].world_size) == (rank, 4)
        assert (found["world"].rank, found["world"].world_size) == (rank, 4)
        assert "2 dimensions" in found["mesh_2d"]
        assert "mesh['dp']" in found["mesh_2d"]
        assert "contradict device_mesh" in found["explicit_mesh_wrong"]
        assert "torch.distributed.ProcessGroup" in found["bad_group"]
        assert "DeviceMesh" in found["bad_mesh"]
        if rank in (0, 2):
            assert (found["evens"].rank, found["evens"].world_size) == (rank // 2, 2)
        else:
            assert "not a member of process_group=" in found["evens"]
        if rank:
            assert (found["tail"].rank, found["tail"].world_size) == (rank - 1, 3)


# --- CPUs ---


def _system(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "proc/self/cgroup": "0::/pod/box\n",
}
V1 = {
    "proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    "proc/self/cgroup": "5:memory:/m\n4:cpu,cpuacct:/docker/abc\n0::/\n",
}
CPU1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({**V2}, 64),
        ({**V2, "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"}, 64),
        ({**V2, "sys/fs/cgroup/pod/box/cpu.max": "150000 100000\n"}, 2),
        ({**V2, "sys/fs/cgroup/pod/box/cpu.max": "10000 100000\n"}, 1),
        (
            {
                **V2,
                "sys/fs/cgroup/pod/box/cpu.max": "800000 100000",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000",
            },
            3,
        ),
        (
            {
                **V2,
                "sys/fs/cgroup/pod/box/cpu.max": "200000 100000",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000",
            },
            2,
        ),
        ({**V2, "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        ({**V2, "sys/fs/cgroup/pod/box/cpu.max": "99999900000 100000"}, 64),
        ({**V2, "sys/fs/cgroup/pod/box/cpu.max": "garbage"}, 64),
        ({**V2, "sys/fs/cgroup/pod/box/cpu.max": "1000 0"}, 64),
        # A container sees its own group as the mount; /proc may still name the host's path.
        (
            {
                "proc/self/mountinfo": "1 2 0:3 /pod/box /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/cpu.max": "500000 100000\n",
            },
            5,
        ),
        (
            {
                "proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
                "proc/self/cgroup": "0::/../../elsewhere\n",
                "sys/fs/cgroup/cpu.max": "500000 100000\n",
            },
            5,
        ),
        (
            {
                **V1,
                f"{CPU1}/docker/abc/cpu.cfs_quota_us": "-1",
                f"{CPU1}/docker/abc/cpu.cfs_period_us": "100000",
            },
            64,
        ),
        (
            {
                **V1,
                f"{CPU1}/docker/abc/cpu.cfs_quota_us": "250000",
                f"{CPU1}/docker/abc/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                **V1,
                f"{CPU1}/docker/cpu.cfs_quota_us": "700000\n",
                f"{CPU1}/docker/cpu.cfs_period_us": "100000\n",
            },
            7,
        ),
    ],
)
def test_cpu_quota(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert cpus.cpu_count(_system(tmp_path, files)) == expected


def test_affinity_caps_the_quota(tmp_path, monkeypatch):
    root = _system(tmp_path, {**V2, "sys/fs/cgroup/pod/box/cpu.max": "600000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert cpus.cpu_count(root) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus.cpu_count(root) == 1


def test_this_machine():
    assert 1 <= topology.cpu_count() <= (os.cpu_count() or 1)


def test_workers_and_threads_share_the_machine(monkeypatch, caplog):
    monkeypatch.setattr(topology, "cpu_count", lambda: 16)
    two = Topology(0, 8, 0, 2)
    with caplog.at_level(logging.INFO, logger="tensorquery"):
        assert topology.default_workers(two) == 7
    assert "num_workers=None: 7" in caplog.text
    assert topology.default_workers(Topology(0, 1)) == 15
    assert topology.default_workers(Topology(0, 32, 0, 32)) == 1
    assert topology.threads_for(two, 0) == 8
    assert topology.threads_for(two, 3) == 2
    assert topology.threads_for(two, 100) == 1


def test_loopback_world_shares_this_machine(monkeypatch):
    assert topology._local_place({"MASTER_ADDR": "127.0.0.1"}, fallback=4) == (None, 4)
    assert topology._local_place({"MASTER_ADDR": "node1"}, fallback=4) == (None, 1)
