"""Measures of tensorquery alone, in a child process."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from compare.request import Request

HELPERS = Path(__file__).parents[2] / "tests" / "python" / "helpers"

Open = Callable[[Request], Iterable[Any]]


def planning(open_batches: Open, request: Request, files: int, ranks: int) -> dict[str, Any]:
    """From a new session to the shards of all ranks."""
    import tensorquery as tq

    start = time.perf_counter()
    session = tq.Session()
    session.register_parquet("t", request.path)
    plan = session.table("t").plan_shards(world_size=ranks, num_workers=1, batch_size=1024)
    seconds = time.perf_counter() - start
    [table] = session.tables
    assert table.files == files, table
    assert plan.num_splits >= ranks
    return {"seconds": seconds, "splits": plan.num_splits}


def dealing(open_batches: Open, request: Request, splits: int, ranks: int) -> dict[str, Any]:
    """LPT over the splits of a table that exists only as metadata."""
    sys.path.insert(0, str(HELPERS))
    from synthetic import GROUPS, plan_of

    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(splits // GROUPS, Path(folder))
    start = time.perf_counter()
    lists = plan.assign(ranks, 1, "lpt")
    seconds = time.perf_counter() - start
    assert sum(map(len, lists)) == splits
    return {"seconds": seconds}


def sorting(open_batches: Open, request: Request, memory_limit: int, budget: float) -> dict[str, Any]:  # fmt: skip
    """All rows sorted by a column that is in no order: a staged query that does not fit its memory limit."""
    import tensorquery as tq

    session = tq.Session(memory_limit=memory_limit)
    query = f"SELECT * FROM '{request.files}' ORDER BY l_partkey, l_extendedprice"
    start, rows = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(dir=Path(request.path).parent) as folder:
        loader, _ = tq.create_dataloader(
            query, session=session, stage_dir=folder, batch_size=request.batch_size
        )
        for batch in loader:
            rows += len(batch["l_partkey"])
    return {"rows": rows, "seconds": time.perf_counter() - start, "complete": True}
