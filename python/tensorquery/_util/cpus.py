"""How many CPUs this process may use: its affinity mask, capped by the quotas of its control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

__all__ = ["cpu_count"]


def cpu_count(root: str | os.PathLike[str] = "/") -> int:
    """Count the CPUs that this process may use, at least 1.

    A container usually sees all CPUs of its host, but is throttled by a quota; threads beyond the quota
    only wait. A quota of 1.5 CPUs counts as 2.

    Args:
        root: The file system that holds `/proc` and `/sys`; another one in tests.

    Returns:
        The smaller of the affinity mask's size and the tightest quota from this process's control group
        (version 1 or 2) up to the top, as it was when the process first asked.
    """
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    return max(1, min([cpus, *_quotas(Path(root))]))


@cache
def _quotas(root: Path) -> list[int]:
    """The quotas of this process's control groups; read once, since that takes as long as planning a query."""
    return [quota for folder in _cgroup_folders(root) if (quota := _quota(folder))]


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """The folders of this process's CPU control groups, each followed by its parents up to the mount."""
    memberships = dict(_memberships(root))
    for controllers, mount_root, mount_point in _mounts(root):
        for controller in controllers:
            if controller not in memberships:
                continue
            group = PurePosixPath("/", memberships[controller])
            # Inside a container the mount may begin below the host's root: only the part below it is visible.
            relative = group.relative_to(mount_root) if group.is_relative_to(mount_root) else None
            folder = root / mount_point.lstrip("/")
            yield folder
            for part in relative.parts if relative is not None else ():
                if part in ("/", ".."):
                    continue
                folder = folder / part
                yield folder


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    """Controller and group path of this process; version 2 has one group, under the name ""."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(","):
            yield controller, path


def _mounts(root: Path) -> Iterator[tuple[list[str], str, str]]:
    """Controllers, root and mount point of every control group file system in view."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        mount_root, mount_point = fields[3], fields[4]
        if kind[0] == "cgroup2":
            yield [""], mount_root, mount_point
        elif kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            yield ["cpu"], mount_root, mount_point


def _quota(folder: Path) -> int | None:
    """Whole CPUs of a group's quota, rounded up; None where it has none."""
    version_2 = " ".join(_lines(folder / "cpu.max")).split()
    if len(version_2) == 2:
        return _ratio(*version_2)
    quota, period = _lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> int | None:
    # "max" (version 2) and -1 (version 1) mean: no limit.
    if not (quota.strip().isdigit() and period.strip().isdigit()) or int(period) == 0:
        return None
    return max(1, math.ceil(int(quota) / int(period)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
