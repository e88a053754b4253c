"""Measures the planning of a large job: ``make bench-scale``.

A million splits of a hundred thousand files, of which there is only metadata, are dealt to 1,024 ranks of 8 workers, in a
process of its own on two cores. Ends with the targets met and missed, and a status other than zero when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python" / "helpers"))

FILES, GROUPS, RANKS, WORKERS = 100_000, 10, 1_024, 8
SECONDS, GIBIBYTES, IMBALANCE, SHARE_MEGABYTES = 10.0, 2.0, 0.01, 10.0
CORES = 2
SAMPLED_RANKS = range(0, RANKS, 128)
"""Ranks whose worker plans are made, beside the share of every rank."""


def measure(files: int) -> dict[str, Any]:
    """Plan the job in this process, and say how long each step took, in seconds."""
    from synthetic import plan_of
    from tensorquery.distributed.topology import Topology
    from tensorquery.sharding.deal import Deal
    from tensorquery.sharding.epochs import Epochs
    from tensorquery.sharding.shard_plan import ShardPlan

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    found: dict[str, Any] = {}
    steps: dict[str, float] = {}
    cpu: dict[str, float] = {}
    began, used = time.perf_counter(), time.process_time()

    def step(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        steps[name] = now - began
        cpu[name] = time.process_time() - sum(cpu.values()) - used
        began = now

    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(files, Path(folder))
    step("metadata to plan")
    assert plan.num_splits == files * GROUPS
    deal = Deal(1024, 42, True, None, "even", None, "lpt")
    epochs = Epochs(plan, deal, Topology(0, RANKS), list, plan.known_counts())
    shares = epochs.all_shares()
    assert shares is not None
    assert len(shares) == RANKS
    step("dealing to ranks")
    sizes = [len(share.encode()) + len(plan.memo(share.split_ids())) for share in shares]
    whole = len(plan.memo())
    step("packing the shares")
    weights = [share.weight for share in shares]
    request = epochs._request(epochs.layout(WORKERS), 0)
    dealt = [share.shards(plan, request) for share in shares]
    rows = [
        shards.size(share.rank, worker)[1] or 0
        for share, shards in zip(shares, dealt, strict=True)
        for worker in range(WORKERS)
    ]
    step("dealing to workers, in order")
    table = ShardPlan(plan, RANKS, WORKERS)
    step("the table of a ShardPlan")
    recipes = []
    for rank in SAMPLED_RANKS:
        text, blobs, _ = plan.recipe(shares[rank].split_ids())
        recipes.append(len(text.encode()) + sum(map(len, blobs)) + len(shares[rank].encode()))
    step(f"worker recipes of {len(recipes)} ranks")
    found["splits"] = plan.num_splits
    found["steps"], found["seconds"] = steps, sum(steps.values())
    found["cpu"] = cpu
    found["gibibytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found["rank imbalance"] = table.rank_imbalance - 1
    found["bytes, cut to equal rows"] = max(weights) * RANKS / sum(weights) - 1
    by_rank = [sum(rows[rank * WORKERS : (rank + 1) * WORKERS]) for rank in range(RANKS)]
    found["rows"], found["rows apart"] = sum(rows), max(by_rank) - min(by_rank)
    found["shard imbalance"] = table.imbalance - 1
    found["whole plan, MB"] = whole / 1e6
    found["largest share, MB"] = max(sizes) / 1e6
    found["largest worker recipe, MB"] = max(recipes) / 1e6
    return found


def main() -> int:
    """Measure in a fresh process, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES, help="files of ten splits each")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.files)))
        return 0
    command = [sys.executable, __file__, "--inside", "--files", str(options.files)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    print(
        f"{found['splits']:,} splits of {options.files:,} files over {RANKS:,} ranks x {WORKERS} workers\n"
    )
    print(" wall s    cpu s")
    for name, seconds in found["steps"].items():
        print(f"{seconds:7.2f}  {found['cpu'][name]:7.2f}  {name}")
    print(f"load average {os.getloadavg()[0]:.1f}")
    print(
        f"\ncut to equal rows: ranks are {found['rows apart']} row apart, and {found['bytes, cut to equal rows']:.2%} by bytes"
    )
    targets = [
        ("seconds, all steps", found["seconds"], SECONDS),
        ("GiB of memory at most", found["gibibytes"], GIBIBYTES),
        ("imbalance of ranks", found["rank imbalance"], IMBALANCE),
        ("imbalance of shards, whole splits", found["shard imbalance"], IMBALANCE),
        ("largest share of a rank, MB", found["largest share, MB"], SHARE_MEGABYTES),
        ("largest recipe of a worker, MB", found["largest worker recipe, MB"], SHARE_MEGABYTES),
    ]
    print(
        f"\nthe whole plan: {found['whole plan, MB']:.1f} MB\n\n| figure | measured | target | |\n|---|---:|---:|---|"
    )
    missed = 0
    for name, value, limit in targets:
        met = value < limit
        missed += not met
        print(f"| {name} | {value:.4g} | < {limit:g} | {'met' if met else 'MISSED'} |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
