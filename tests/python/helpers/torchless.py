"""Programs that run where no torch is: the interpreter without its site-packages, and links to the few packages that are meant to be there."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import tensorquery

HIDDEN = 'import sys; sys.modules["torch"] = None\n'
"""The first line of a program to which torch is nothing: its import would take most of the program's time."""

NUMPY = ("numpy",)
ARROW = ("numpy", "pyarrow")
JAX = ("numpy", "pyarrow", "jax", "jaxlib", "ml_dtypes", "opt_einsum", "scipy")
BARS = (*ARROW, "tqdm")

FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
"""Variables under which JAX divides the processor into four devices."""


def place(folder, packages):
    """A folder with links to these packages, which is all that a program finds besides the standard library."""
    found = folder / ("with-" + "-".join(packages))
    if found.exists():
        return found
    found.mkdir()
    (found / "tensorquery").symlink_to(Path(tensorquery.__file__).parent)
    for name in packages:
        package = Path(importlib.util.find_spec(name).submodule_search_locations[0])
        own = [package, package.with_name(f"{name}.libs")]
        # JAX asks for the versions of its parts.
        own.append(Path(importlib.metadata.distribution(name)._path))
        for path in own:
            if path.exists():
                (found / path.name).symlink_to(path)
    return found


def start(folder, code, *arguments, packages=ARROW, variables=None, **options):
    """Start a program in `folder`, from its text or its file.

    Returns:
        The process, whose outputs are pipes.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "PYTHONPATH": str(place(folder, packages)), **(variables or {})}
    source = [code] if isinstance(code, Path) else ["-c", code]
    return subprocess.Popen(
        [sys.executable, "-S", *source, *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process, timeout=240):
    """What a program printed; it must succeed."""
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, f"{out}\n{errors}"
    return out


def run(folder, code, *arguments, **options):
    """Run a program that must succeed, and return what it printed."""
    return finish(start(folder, code, *arguments, **options))


def run_ranks(folder, code, world_size, *arguments, **options):
    """Run a program once per rank, all at once, with its rank as launchers say it; returns what each printed."""
    variables = options.pop("variables", {})
    processes = [
        start(
            folder,
            code,
            *arguments,
            variables={
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": str(world_size),
                **variables,
            },
            **options,
        )
        for rank in range(world_size)
    ]
    try:
        return [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
