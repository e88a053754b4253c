"""Where figures were taken: CPU, cores, versions, load."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "torch", "pyarrow", "torch-dataloader-utils", "datasets", "ray", "duckdb", "polars", "pylance", "lancedb",
)  # fmt: skip


def machine(packages: tuple[str, ...] = ("torch", "pyarrow")) -> str:
    """CPU, cores and versions, for whoever reads the figures."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    return f"{model}, {cores} cores, Python {platform.python_version()}, {versions}"


def build() -> str:
    """Which build of tensorquery is imported here: an installed wheel, or the one of a working tree."""
    import tensorquery

    place = Path(tensorquery.__file__).parent
    return "release wheel" if "site-packages" in place.parts else "dev build of the working tree"


def load() -> str:
    """The load averages of one and five minutes: figures of a busy machine are worth less."""
    one, five, _ = os.getloadavg()
    return f"load average {one:.1f} (five minutes: {five:.1f})"


def use_cores(count: int) -> None:
    """Keep this process, and those it starts, on the first `count` cores."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:
        raise SystemExit(f"--cores {count}, but this process may use {len(cores)}")
    os.sched_setaffinity(0, cores[:count])
    os.environ["POLARS_MAX_THREADS"] = str(count)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
