"""Measures loaders against each other on the same files, in one run: ``make bench``.

Each measurement is a process of its own; the loaders take turns; the figures are medians. A loader's rows are
checked. Peak memory is the proportional set size (PSS) of the process tree, sampled in a run of its own. Ends
with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = Path(".bench")
LOADERS = ("tensorquery", "torch-dataloader-utils", "pyarrow")
IMPORTS = {
    "tensorquery": ["tensorquery.loader"],
    "torch-dataloader-utils": ["torch_dataloader_utils", "pyarrow.dataset", "pyarrow.compute"],
    "pyarrow": ["pyarrow.dataset", "pyarrow.compute"],
}
WORKS = {"full scan": None, "1% range": 0.01}
BATCH_SIZES = (1024, 8192)


# --------------------------------------------------------------------------------------------------------
# One measurement, in a process of its own


def measure(loader: str, work: str, batch_size: int) -> dict[str, float]:
    """Read everything once; the clock starts before the loader is made, after imports and a warm-up of torch."""
    import torch

    open_loader: Callable[[str, tuple[int, int] | None, int], Iterator[dict[str, Any]]]
    open_loader = {
        "tensorquery": _tensorquery,
        "torch-dataloader-utils": _torch_dataloader_utils,
        "pyarrow": _pyarrow,
    }[loader]
    torch.zeros(1)
    for module in IMPORTS[loader]:
        importlib.import_module(module)
    import psutil

    process = psutil.Process()
    before = process.memory_full_info().pss
    bounds = json.loads((DATA / "range.json").read_text()) if WORKS[work] else None
    start = time.perf_counter()
    rows, first = 0, None
    for batch in open_loader(str(DATA / "lineitem"), bounds, batch_size):
        rows += len(batch["l_orderkey"])
        if first is None:
            first = time.perf_counter() - start
    seconds = time.perf_counter() - start
    return {"rows": rows, "seconds": seconds, "first_batch": first or seconds, "pss_before": before}


def _tensorquery(
    path: str, bounds: tuple[int, int] | None, batch_size: int
) -> Iterator[dict[str, Any]]:
    import tensorquery as tq

    filters = None if bounds is None else f"l_orderkey BETWEEN {bounds[0]} AND {bounds[1]}"
    loader, _ = tq.create_dataloader(path=path, filters=filters, batch_size=batch_size)
    return iter(loader)


def _torch_dataloader_utils(
    path: str, bounds: tuple[int, int] | None, batch_size: int
) -> Iterator[dict[str, Any]]:
    from torch_dataloader_utils import StructuredDataset

    loader, _ = StructuredDataset.create_dataloader(
        path=path,
        format="parquet",
        filters=_expression(bounds),
        batch_size=batch_size,
        num_workers=0,
    )
    return iter(loader)


def _pyarrow(
    path: str, bounds: tuple[int, int] | None, batch_size: int
) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds
    import torch

    dataset = ds.dataset(path, format="parquet")
    for batch in dataset.to_batches(filter=_expression(bounds), batch_size=batch_size):
        if batch.num_rows:
            # A copy, as a training loop needs memory that it may write to.
            yield {
                name: torch.tensor(column.to_numpy(zero_copy_only=False))
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }


def _expression(bounds: tuple[int, int] | None) -> Any:
    import pyarrow.compute as pc

    if bounds is None:
        return None
    return (pc.field("l_orderkey") >= bounds[0]) & (pc.field("l_orderkey") <= bounds[1])


# --------------------------------------------------------------------------------------------------------
# The run: turns taken, medians, targets


@dataclass
class Figures:
    """Medians of one loader, work and batch size; spread is (max - min) / median of the seconds."""

    rows_per_second: float
    seconds: float
    spread: float
    first_batch: float
    peak_mib: float
    rows: int


def run_child(
    loader: str, work: str, batch_size: int, *, sample: bool
) -> tuple[dict[str, float], float]:
    """One measurement; with `sample` also the peak PSS of its process tree in bytes, beyond what imports took.

    Sampling stops the process for milliseconds, so what is sampled is not timed.
    """
    import psutil

    command = [sys.executable, __file__, "--child", loader, work, str(batch_size)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    tree = psutil.Process(child.pid)
    while sample and child.poll() is None:
        try:
            processes = [tree, *tree.children(recursive=True)]
            peak = max(peak, sum(process.memory_full_info().pss for process in processes))
        except psutil.Error:
            pass  # it ended between two looks
        time.sleep(0.005)
    output, _ = child.communicate()
    if child.returncode != 0:
        raise SystemExit(f"{loader} failed on {work} at batch size {batch_size}")
    result = json.loads(output.splitlines()[-1])
    return result, max(0.0, peak - result["pss_before"])


def compare(work: str, batch_size: int, repeats: int) -> dict[str, Figures]:
    """All loaders on one work, taking turns; the first turn warms the page cache and samples memory."""
    peaks = {name: run_child(name, work, batch_size, sample=True)[1] for name in LOADERS}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
    for _ in range(repeats):
        for name in LOADERS:
            runs[name].append(run_child(name, work, batch_size, sample=False)[0])
    figures = {}
    for name, results in runs.items():
        seconds = [result["seconds"] for result in results]
        median = statistics.median(seconds)
        rows = int(results[0]["rows"])
        figures[name] = Figures(
            rows / median,
            median,
            (max(seconds) - min(seconds)) / median,
            statistics.median(result["first_batch"] for result in results),
            peaks[name] / 2**20,
            rows,
        )
    counts = {name: one.rows for name, one in figures.items()}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"the loaders disagree about the rows of {work!r}: {counts}")
    return figures


def make_range() -> None:
    """The 1% of order keys in the middle, as the generator's keys go: not at a row group's border."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    keys = ds.dataset(DATA / "lineitem").to_table(columns=["l_orderkey"])["l_orderkey"]
    low, high = pc.quantile(keys, [0.495, 0.505], interpolation="lower").to_pylist()
    (DATA / "range.json").write_text(json.dumps([low, high]))


def machine() -> str:
    """CPU, cores and versions, for whoever reads the figures."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    versions = subprocess.run(
        [sys.executable, "-c", "import torch, pyarrow; print('torch', torch.__version__, 'pyarrow', pyarrow.__version__)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, Python {platform.python_version()}, {versions}"


def report(results: dict[tuple[str, int], dict[str, Figures]]) -> bool:
    """Print the table and the targets; True when all are met."""
    print(f"\n{machine()}\n")
    print(
        "| work | batch size | loader | rows/s (millions) | seconds | spread | first batch (ms) | peak memory (MiB) |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    for (work, batch_size), figures in results.items():
        for name, one in figures.items():
            print(
                f"| {work} | {batch_size} | {name} | {one.rows_per_second / 1e6:.2f} | {one.seconds:.3f} | "
                f"{one.spread:.0%} | {one.first_batch * 1e3:.0f} | {one.peak_mib:.0f} |"
            )
    print("\n| target | factor | |\n|---|---:|---|")
    met = True
    for (work, batch_size), figures in results.items():
        ours = figures["tensorquery"].rows_per_second
        for peer in LOADERS[1:]:
            wanted = 20.0 if (work, peer) == ("1% range", "torch-dataloader-utils") else 1.0
            factor = ours / figures[peer].rows_per_second
            met &= factor >= wanted
            verdict = "met" if factor >= wanted else "MISSED"
            print(f"| {work}, batch {batch_size}: {wanted:g} × {peer} | {factor:.2f} | {verdict} |")
    return met


def main() -> None:
    """Parse the command line; measure one thing as a child, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("LOADER", "WORK", "BATCH_SIZE"))
    parser.add_argument(
        "--repeats", type=int, default=5, help="counted runs of each loader (default 5)"
    )
    options = parser.parse_args()
    if options.child:
        loader, work, batch_size = options.child
        print(json.dumps(measure(loader, work, int(batch_size))))
        return
    sys.path.insert(0, str(HERE))
    from data import make

    make(DATA)
    make_range()
    results = {
        (work, batch_size): compare(work, batch_size, options.repeats)
        for work in WORKS
        for batch_size in BATCH_SIZES
    }
    raise SystemExit(0 if report(results) else 1)


if __name__ == "__main__":
    main()
