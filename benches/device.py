"""Measure how batches reach a GPU: `device="cuda"` against pinned memory and plain copies of the loop itself.

Each way reads one epoch of the same files with a training step of about a batch's own time, in turns. What a loop
adds to the slower of reading and computing is what moving batches costs. Needs a GPU that torch.cuda can use.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import tensorquery as tq

COLUMNS = 64


def write(folder, rows):
    """Four files of float32 columns."""
    rng = np.random.default_rng(0)
    for number in range(4):
        columns = {
            f"c{i}": rng.standard_normal(rows // 4).astype(np.float32) for i in range(COLUMNS)
        }
        pq.write_table(
            pa.table(columns),
            folder / f"{number}.parquet",
            compression="snappy",
            use_dictionary=False,
        )


def plain(folder, size):
    """The loop copies each column, and waits for it."""
    loader, _ = tq.create_dataloader(path=str(folder), batch_size=size, rank=0, world_size=1)
    for batch in loader:
        yield {name: value.to("cuda") for name, value in batch.items()}


def pinned(folder, size):
    """Torch pins the memory, and the loop copies without waiting."""
    loader, _ = tq.create_dataloader(
        path=str(folder), batch_size=size, rank=0, world_size=1, pin_memory=True
    )
    for batch in loader:
        yield {name: value.to("cuda", non_blocking=True) for name, value in batch.items()}


def device(folder, size):
    """The loader copies one batch ahead, on a stream of its own."""
    loader, _ = tq.create_dataloader(
        path=str(folder), batch_size=size, rank=0, world_size=1, device="cuda"
    )
    yield from loader


def stacked(folder, size):
    """One matrix of all columns, copied as one block."""
    stack = {"x": [f"c{i}" for i in range(COLUMNS)]}
    loader, _ = tq.create_dataloader(
        path=str(folder), batch_size=size, rank=0, world_size=1, stack=stack, device="cuda"
    )
    yield from loader


def epoch(way, folder, size, weights, products):
    """Seconds of an epoch, and the sum of what it delivered."""
    torch.cuda.synchronize()
    begin, total = time.perf_counter(), torch.zeros((), device="cuda", dtype=torch.float64)
    noise = weights
    for batch in way(folder, size):
        for _ in range(products):
            noise = noise @ weights
        total += sum(value.sum(dtype=torch.float64) for value in batch.values())
    torch.cuda.synchronize()
    return time.perf_counter() - begin, float(total)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benches/device.py needs a GPU that torch.cuda can use")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cpus", torch.get_num_threads())
    weights = torch.eye(4096, device="cuda", dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write(folder, chosen.rows)
        megabytes = chosen.rows * COLUMNS * 4 / 1e6
        for products in (0, 10, 40):
            times, sums = {}, set()
            for _ in range(chosen.turns + 1):
                for way in (plain, pinned, device, stacked):
                    seconds, total = epoch(way, folder, chosen.batch, weights, products)
                    times.setdefault(way.__name__, []).append(seconds)
                    sums.add(round(total, 3))
            print(
                f"step of {products} products; every way delivered the same sum: {len(sums) == 1}"
            )
            for name, all_times in times.items():
                taken = sorted(all_times[1:])  # the first turn warms up
                middle = statistics.median(taken)
                print(
                    f"  {name:8} {middle:6.3f} s ({taken[0]:.3f} to {taken[-1]:.3f}), {megabytes / middle:7.0f} MB/s"
                )


if __name__ == "__main__":
    main()
