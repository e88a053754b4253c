"""One measurement per row of the table of targets. Each takes a `Bench` and gives its figures and verdicts to it."""

from collections.abc import Callable

from compare.bench import Bench
from compare.works.filters import one_percent_range, one_percent_scattered
from compare.works.planning import many_files
from compare.works.scans import embeddings, full_scan, two_columns, wide_table
from compare.works.shares import eight_shards, many_ranks
from compare.works.shuffle import record_shuffle
from compare.works.standing import idle_cost, peak_memory, time_to_first_batch, two_workers
from compare.works.texts import csv_files, json_files

WORKS: dict[str, Callable[[Bench], None]] = {
    "scan": full_scan,
    "wide": wide_table,
    "columns": two_columns,
    "range": one_percent_range,
    "scattered": one_percent_scattered,
    "shards": eight_shards,
    "ranks": many_ranks,
    "shuffle": record_shuffle,
    "embeddings": embeddings,
    "first": time_to_first_batch,
    "workers": two_workers,
    "memory": peak_memory,
    "planning": many_files,
    "idle": idle_cost,
    "csv": csv_files,
    "ndjson": json_files,
}
