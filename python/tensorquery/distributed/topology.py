"""Which part of the world this process is: rank, world size, and its share of the machine's CPUs.

The rank comes from explicit values, a process group or device mesh, or the launcher's environment; never
from a guess. A half-set environment is an error, because a world size that is silently 1 would train
every rank on all rows.
"""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorquery._util.cpus import cpu_count
from tensorquery._util.options import MOST_SHARDS, check_non_negative_int, check_positive_int
from tensorquery.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "RankGroup",
    "Topology",
    "check_still_alone",
    "cpu_count",
    "default_workers",
    "detect",
    "group_store",
    "threads_for",
]

_log = logging.getLogger("tensorquery")

# Slurm numbers its own pseudo steps (batch script, interactive shell, extern, pending) from the top of
# 32 bits; a process in one of them is no task of a parallel launch.
_FIRST_SLURM_PSEUDO_STEP = 0xFFFF_FFF0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Topology:
    """The place of this process among all training processes.

    Attributes:
        rank: This process among the data-parallel ones, in 0..world_size.
        world_size: Number of data-parallel processes, at least 1.
        local_rank: The number of this process on its machine; None if unknown.
        local_world_size: Training processes on this machine, at least 1; they share its CPUs, so it
            also counts processes that differ only in their tensor- or pipeline-parallel rank.
        source: Where rank and world size come from, for logs and errors.
    """

    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int = 1
    source: str = "explicit"

    def __post_init__(self) -> None:
        """Refuse what no world has."""
        check_non_negative_int("rank", self.rank)
        check_positive_int("world_size", self.world_size, MOST_SHARDS)
        check_positive_int("local_world_size", self.local_world_size)
        if self.rank >= self.world_size:
            raise ConfigError(
                f"rank {self.rank} must be in 0..{self.world_size} "
                f"(world_size is {self.world_size}, from {self.source})"
            )


class RankGroup(ABC):
    """A process group of our own, where there is none of torch; see `process_group.ProcessGroup`.

    Attributes:
        rank: This process among its ranks.
        world_size: Number of ranks.
    """

    rank: int
    world_size: int

    @property
    @abstractmethod
    def store(self) -> Any | None:
        """The key-value store of its ranks; None for a single one."""


@dataclass(frozen=True)
class _Launcher:
    """The variables by which a launcher tells a process its place."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher(
        "Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
    ),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)


def detect(
    rank: int | None = None,
    world_size: int | None = None,
    process_group: ProcessGroup | RankGroup | None = None,
    device_mesh: DeviceMesh | None = None,
) -> Topology:
    """Find rank and world size, and log at INFO where they come from.

    The first of these that applies: explicit values; `process_group` or `device_mesh`; an initialised
    `torch.distributed`; an initialised `jax.distributed`; the variables of torchrun, Horovod, Open MPI, SLURM; else one process.
    Neither torch nor JAX is imported here: a program that has not imported it has no processes of it.

    Args:
        rank: This process among the data-parallel ones; together with `world_size` or not at all.
        world_size: Number of data-parallel processes.
        process_group: The data-parallel group, where it is not the global one (tensor or pipeline
            parallelism): processes that share a rank in it get the same rows. Or a `ProcessGroup` of this package.
        device_mesh: The same as a one-dimensional `DeviceMesh`, such as ``mesh["dp"]``.

    Returns:
        The place of this process.

    Raises:
        ConfigError: Only one of `rank` and `world_size` is given, values contradict each other or an
            initialised process group, this process is not in the group, or the environment is half set.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank!r} and world_size={world_size!r} come together or not at all; give both, or "
            "neither to take them from torch.distributed or the launcher"
        )
    if process_group is not None and device_mesh is not None:
        raise ConfigError("process_group= and device_mesh= say the same thing; give one of them")

    grouped = _from_group(process_group, device_mesh)
    if rank is not None and world_size is not None:
        topology = _explicit(rank, world_size, grouped)
    else:
        topology = grouped or _from_torch() or _from_jax() or _from_environment(os.environ)
    _log.info(
        "rank %d of %d (from %s; %d training process(es) on this machine)",
        topology.rank,
        topology.world_size,
        topology.source,
        topology.local_world_size,
    )
    return topology


def check_still_alone(topology: Topology) -> None:
    """Refuse to go on alone in a process group that was made after the loader, where every rank would train on all rows.

    Raises:
        ConfigError: Nothing said so when the loader was made, but now torch.distributed or jax.distributed has several ranks.
    """
    if not topology.source.startswith("default"):
        return
    world = _from_torch() or _from_jax()
    if world is not None and world.world_size > 1:
        begin = (
            "init_process_group"
            if world.source.startswith("torch")
            else "jax.distributed.initialize"
        )
        raise ConfigError(
            f"{world.source} has {world.world_size} ranks, but the loader was made before, when nothing said so, and every rank "
            f"would deliver all rows; make the loader after {begin}(), or give rank= and world_size= "
            "(rank=0, world_size=1 where each rank is to deliver all)"
        )


def default_workers(topology: Topology) -> int:
    """Worker processes for ``num_workers=None``: this process's share of the CPUs less one, at least 1."""
    cpus = cpu_count()
    workers = max(1, cpus // topology.local_world_size - 1)
    _log.info(
        "num_workers=None: %d worker(s) (%d CPU(s) for %d training process(es), one kept for each)",
        workers,
        cpus,
        topology.local_world_size,
    )
    return workers


def threads_for(topology: Topology, num_workers: int) -> int:
    """Decoding threads for each process that decodes, at least 1.

    Args:
        topology: Says how many training processes share this machine.
        num_workers: `DataLoader` workers of this training process; 0 where it decodes itself.
    """
    return max(1, cpu_count() // (topology.local_world_size * max(1, num_workers)))


def group_store(
    topology: Topology, process_group: ProcessGroup | RankGroup | None = None
) -> Any | None:
    """The key-value store through which the ranks of a process group can talk without a collective.

    Args:
        topology: The place of this process.
        process_group: The data-parallel group; None: the global one.

    Returns:
        The group's own `torch.distributed.Store`, or what has its methods, whose keys no other group sees. None for a single
        rank, without a group of this package or an initialised torch.distributed, where the group is not the world that
        `topology` tells of, and for backends without a store.
    """
    if isinstance(process_group, RankGroup):
        place = (process_group.rank, process_group.world_size)
        return process_group.store if place == (topology.rank, topology.world_size) else None
    torch_distributed = _torch_distributed()
    if torch_distributed is None or topology.world_size == 1:
        return None
    group = torch_distributed.group.WORLD if process_group is None else process_group
    if _place_in_group(torch_distributed, group) != (topology.rank, topology.world_size):
        return None
    # torch has no public name for it; groups are known to torch with their backend and store.
    c10d = torch_distributed.distributed_c10d
    try:
        return c10d._world.pg_map[group][1]
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        _log.info("this torch does not give a process group's store: %r", error)
        return None


def has_group() -> bool:
    """Whether this process has an initialised torch.distributed."""
    return _torch_distributed() is not None


def _explicit(rank: int, world_size: int, grouped: Topology | None) -> Topology:
    """Check explicit values against the group given, or else against the initialised global one."""
    local_rank, local_size = _local_place(os.environ)
    given = Topology(
        check_non_negative_int("rank", rank),
        check_positive_int("world_size", world_size, MOST_SHARDS),
        local_rank,
        local_size,
    )
    other = grouped or _from_torch()
    if other is None or (other.rank, other.world_size) == (given.rank, given.world_size):
        # The group knows better how many processes share this machine.
        if other is None:
            return given
        return Topology(
            given.rank, given.world_size, other.local_rank, other.local_world_size, given.source
        )
    message = (
        f"rank={rank}, world_size={world_size} contradict {other.source}, "
        f"where this process is rank {other.rank} of {other.world_size}; leave both out"
    )
    if grouped is None:
        message += (
            ". Where the data-parallel rank is not the global rank (tensor or pipeline parallelism), "
            'pass the data-parallel group instead: process_group=group or device_mesh=mesh["dp"]'
        )
    raise ConfigError(message)


def _torch_distributed() -> Any | None:
    """`torch.distributed` where the program has imported it and it has an initialised group."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def _from_torch() -> Topology | None:
    torch_distributed = _torch_distributed()
    if torch_distributed is None:
        return None
    size = torch_distributed.get_world_size()
    local_rank, local_size = _local_place(os.environ, fallback=size)
    return Topology(torch_distributed.get_rank(), size, local_rank, local_size, "torch.distributed")


def _from_jax() -> Topology | None:
    """The place in an initialised `jax.distributed`, where the program has imported JAX."""
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if jax is None or distributed is None or not distributed.is_initialized():
        return None
    local_rank, local_size = _local_place(os.environ)
    rank, size = jax.process_index(), jax.process_count()
    return Topology(rank, size, local_rank, local_size, "jax.distributed")


def _from_group(process_group: Any | None, device_mesh: Any | None) -> Topology | None:
    """The place within `process_group` or `device_mesh`, whichever is given."""
    if process_group is None and device_mesh is None:
        return None
    if isinstance(process_group, RankGroup):
        rank, size = process_group.rank, process_group.world_size
        return Topology(rank, size, *_local_place(os.environ), "process_group")
    option = "process_group" if process_group is not None else "device_mesh"
    torch_distributed = _torch_distributed()
    if torch_distributed is None:
        raise ConfigError(
            f"{option}= needs an initialised torch.distributed; call "
            "torch.distributed.init_process_group() first, or give rank= and world_size="
        )
    if device_mesh is not None:
        rank, size = _place_in_mesh(device_mesh)
    else:
        rank, size = _place_in_group(torch_distributed, process_group)
    if rank < 0:
        raise ConfigError(
            f"this process (global rank {torch_distributed.get_rank()}) is not a member of {option}=; "
            "pass the group or mesh that holds it"
        )
    local_rank, local_size = _local_place(os.environ, fallback=torch_distributed.get_world_size())
    return Topology(rank, size, local_rank, local_size, option)


def _place_in_group(torch_distributed: Any, group: Any) -> tuple[int, int]:
    # `new_group` hands a marker instead of a group to processes outside of it.
    outside = torch_distributed.GroupMember.NON_GROUP_MEMBER
    if group is outside:
        return -1, 0
    if not isinstance(group, torch_distributed.ProcessGroup):
        raise ConfigError(
            f"process_group={group!r} is a {type(group).__name__}; expected a "
            "torch.distributed.ProcessGroup, for example from torch.distributed.new_group()"
        )
    return torch_distributed.get_rank(group), torch_distributed.get_world_size(group)


def _place_in_mesh(mesh: Any) -> tuple[int, int]:
    if not (hasattr(mesh, "get_coordinate") and hasattr(mesh, "ndim")):
        raise ConfigError(
            f"device_mesh={mesh!r} is a {type(mesh).__name__}; expected a "
            'torch.distributed.device_mesh.DeviceMesh, for example mesh["dp"]'
        )
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        example = repr(names[0]) if names else '"dp"'
        raise ConfigError(
            f"device_mesh has {mesh.ndim} dimensions ({names or 'unnamed'}), but which of them split the "
            f"data is not known; pass the data-parallel one, such as mesh[{example}] (several, as in "
            'HSDP: flatten them first, mesh["replicate", "shard"]._flatten("dp"))'
        )
    coordinate = mesh.get_coordinate()
    return (-1 if coordinate is None else coordinate[0]), mesh.size()


def _from_environment(env: Mapping[str, str]) -> Topology:
    for launcher in _LAUNCHERS:
        if launcher.rank not in env and launcher.size not in env:
            continue
        rank, size = _pair(env, launcher)
        local_rank, local_size = _local_of(env, launcher)
        return Topology(rank, size, local_rank, local_size or 1, f"{launcher.name} environment")
    if _is_slurm_task(env):
        # The step's own count where Slurm gives it: an allocation can be larger than the step.
        size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        launcher = _Launcher("SLURM", "SLURM_PROCID", size_name, "SLURM_LOCALID", "")
        rank, size = _pair(env, launcher)
        local_rank, local_size = _local_of_slurm(env)
        return Topology(rank, size, local_rank, local_size or 1, "SLURM environment")
    return Topology(0, 1, None, 1, "default: no launcher found")


def _pair(env: Mapping[str, str], launcher: _Launcher) -> tuple[int, int]:
    """Rank and world size of `launcher`, both present and in range, or an error with their names."""
    for present, missing in ((launcher.rank, launcher.size), (launcher.size, launcher.rank)):
        if missing not in env:
            raise ConfigError(
                f"the environment has {present}={env[present]!r} but no {missing}, so the world size "
                f"is not known; set both, unset {present}, or give rank= and world_size="
            )
    rank, size = _number(env, launcher.rank), _number(env, launcher.size)
    if size < 1 or rank >= size:
        raise ConfigError(
            f"the environment has {launcher.rank}={rank} and {launcher.size}={size}, but "
            f"{launcher.rank} must be in 0..{launcher.size}; set both or unset both"
        )
    return rank, size


def _number(env: Mapping[str, str], name: str) -> int:
    text = env[name].strip()
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"the environment variable {name}={env[name]!r} must be a whole number of at least 0, for "
            f"example {name}=0; correct or unset it"
        )
    return int(text)


def _local_place(env: Mapping[str, str], fallback: int = 1) -> tuple[int | None, int]:
    """Local rank and local world size from whichever launcher's variables say them.

    Args:
        env: The environment.
        fallback: Processes on this machine where no launcher says so, but all processes met on the
            loopback address.
    """
    for launcher in _LAUNCHERS:
        local_rank, local_size = _local_of(env, launcher)
        if local_size:
            return local_rank, local_size
    if _is_slurm_task(env):
        local_rank, local_size = _local_of_slurm(env)
        if local_size:
            return local_rank, local_size
    return None, fallback if env.get("MASTER_ADDR") in _LOOPBACK else 1


def _local_of(env: Mapping[str, str], launcher: _Launcher) -> tuple[int | None, int | None]:
    local_rank = _number(env, launcher.local_rank) if launcher.local_rank in env else None
    local_size = _number(env, launcher.local_size) if launcher.local_size in env else None
    if local_size == 0:
        raise ConfigError(
            f"the environment variable {launcher.local_size}=0 must be at least 1; correct or unset it"
        )
    return local_rank, local_size


def _is_slurm_task(env: Mapping[str, str]) -> bool:
    """Whether srun started this process: a salloc shell or a batch script has task counts, but is no task."""
    if "SLURM_PROCID" not in env or "SLURM_STEP_ID" not in env:
        return False
    return _number(env, "SLURM_STEP_ID") < _FIRST_SLURM_PSEUDO_STEP


def _local_of_slurm(env: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Local rank, and tasks on this node from "2(x3),1" (per node of the step) or the requested count."""
    local_rank = _number(env, "SLURM_LOCALID") if "SLURM_LOCALID" in env else None
    if "SLURM_STEP_TASKS_PER_NODE" in env and "SLURM_NODEID" in env:
        per_node: list[int] = []
        for part in env["SLURM_STEP_TASKS_PER_NODE"].split(","):
            count, _, repeat = part.strip().partition("(x")
            repeat = repeat.removesuffix(")") or "1"
            if not (count.isdigit() and repeat.isdigit()):
                raise ConfigError(
                    "the environment variable SLURM_STEP_TASKS_PER_NODE="
                    f"{env['SLURM_STEP_TASKS_PER_NODE']!r} must look like 2(x3),1; correct or unset it"
                )
            per_node.extend([int(count)] * int(repeat))
        node = _number(env, "SLURM_NODEID")
        if node < len(per_node) and per_node[node]:
            return local_rank, per_node[node]
    if "SLURM_NTASKS_PER_NODE" in env:
        return local_rank, _number(env, "SLURM_NTASKS_PER_NODE") or None
    return local_rank, None
