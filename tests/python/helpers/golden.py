"""Golden texts: what the queries of golden_cases.py plan and deliver, and the states of their loaders.

``make golden`` writes tests/golden/expected anew; test_golden.py compares. A text holds no absolute path, no time and no
random name: inputs come from `GoldenFiles`, and `plain` replaces what is left.
"""

import itertools
import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

import pyarrow as pa

import iceberg_fixtures
import tensorquery as tq
from golden_cases import CASES
from golden_files import INPUTS, GoldenFiles

GOLDEN = Path(__file__).parents[2] / "golden"
EXPECTED = GOLDEN / "expected"
CACHED = GOLDEN / "plan_cache.txt"

# Those of the loader's options that `plan_shards` has, too.
_PLANNED = (
    "batch_size",
    "num_workers",
    "split_rows",
    "split_strategy",
    "shuffle",
    "shuffle_buffer_size",
    "partitions",
    "remainder",
    "stage",
)


def text_of(case):
    """The golden text of a case; its stages are built below $TENSORQUERY_STAGES."""
    options = {"batch_size": 7, **case.options}
    parts = [f"# {case.name}", ""]
    with warnings.catch_warnings():
        # Of sorted data and small windows, and of what is left out.
        warnings.simplefilter("ignore", UserWarning)
        query = case.query()
        if isinstance(query, tq.Query):
            explained = query.explain(stage=options.get("stage", "auto")).strip()
            parts += ["## SQL", query.sql.strip(), "", "## explain()", explained, ""]
            # A bad part is left out by the loader alone.
            if "on_error" not in options:
                parts += ["## shard plan", *_shard_plan(query, case, options), ""]
        for rank in range(case.ranks):
            parts += [f"## rank {rank} of {case.ranks}", *_delivered(case, rank, options), ""]
    return plain("\n".join(parts), identities=case.identities)


def _shard_plan(query, case, options):
    chosen = {key: options[key] for key in _PLANNED if key in options}
    plan = query.plan_shards(world_size=case.ranks, **chosen)
    yield str(plan)
    yield f"fingerprint {plan.fingerprint}"
    for split in plan.splits():
        rows = "?" if split.row_count is None else split.row_count
        span = "" if split.row_range is None else f" from row {split.row_range.offset}"
        values = "".join(f" {name}={value}" for name, value in split.partition_values.items())
        yield f"split {split.id}: {split.path}{values}, {split.unit}, {rows} rows{span}, {split.bytes} bytes"
    for shard in plan.shards:
        ids = [split.id for split in plan.splits(shard.rank, shard.worker)]
        yield f"rank {shard.rank} worker {shard.worker} reads splits {ids}"


def _delivered(case, rank, options):
    loader, _ = tq.create_dataloader(
        case.query(), rank=rank, world_size=case.ranks, output_format="arrow", **options
    )
    state = None
    for epoch in range(case.epochs):
        iterator = iter(loader)
        for step in itertools.count(1):
            batch = next(iterator, None)
            if batch is None:
                break
            yield f"epoch {epoch} step {step}: {' '.join(map(str, batch['id'].to_pylist()))}"
            if (epoch, step) == (0, case.step):
                state = loader.state_dict()
    if state is None:
        raise AssertionError(f"{case.name} ends before step {case.step} of rank {rank}")
    yield f"state after step {case.step}:"
    for key, value in sorted(state.items()):
        yield f"  {key}: {json.dumps(value, sort_keys=True)}"


def plain(text, *, identities):
    """The text without what differs from run to run: folders, the random names of stages' builds.

    Args:
        text: What was planned and delivered.
        identities: Whether fingerprints and digests of files stay; those of local files have their times and folder.
    """
    places = {
        str(INPUTS): "<inputs>",
        str(iceberg_fixtures.ROOT): "<iceberg>",
        os.environ["TENSORQUERY_STAGES"]: "<stages>",
    }
    for place, name in places.items():
        # The engine's plans show paths without the first slash.
        text = text.replace(place, name).replace(place.lstrip("/"), name)
    text = re.sub("(<stages>/queries/[0-9a-f]{64}/)[^/]+", r"\1<build>", text)
    if identities:
        return text
    return re.sub(r"[0-9a-f]{64}|(?<=\[\")[0-9a-f]{8}\", \"[0-9a-f]{8}", "<identity>", text)


def cached_names(folder):
    """The names of a plan cache's entries: of listings with and without options, and of a plan."""
    session = tq.Session(plan_cache=folder)
    known, lines = set(), []

    def planned(what, sql):
        session.sql(sql).plan_shards()
        found = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*.memo")}
        lines.extend(f"{what}: {name}" for name in sorted(found - known))
        known.update(found)

    files = {"filesystem": GoldenFiles()}
    session.register_parquet("t", "parquet/", **files)
    planned("parquet", "SELECT id FROM t")
    planned("another query", "SELECT id FROM t WHERE k = 1")
    session.register_parquet("t", "parquet/", schema=pa.schema({"id": pa.int64()}), **files)
    planned("a declared schema", "SELECT id FROM t")
    session.register_csv("c", "csv/", infer_rows=3, partitioning=False, **files)
    planned("csv", "SELECT id FROM c")
    return "\n".join([*lines, ""])


def main(wanted):
    """Write the texts of the named cases; without names, those of all, and remove the others."""
    names = {case.name for case in CASES}
    if unknown := set(wanted) - names:
        sys.exit(f"golden: no case {', '.join(sorted(unknown))}")
    EXPECTED.mkdir(exist_ok=True)
    for old in EXPECTED.iterdir():
        if old.stem not in names:
            old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TENSORQUERY_CACHE"] = folder
        os.environ["TENSORQUERY_STAGES"] = f"{folder}/stages"
        if not wanted:
            CACHED.write_text(cached_names(f"{folder}/plans"))
        for case in CASES:
            if not wanted or case.name in wanted:
                (EXPECTED / f"{case.name}.txt").write_text(text_of(case))


if __name__ == "__main__":
    main(sys.argv[1:])
