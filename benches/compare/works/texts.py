"""Text is read: rows per second against the fastest peer."""

from __future__ import annotations

from typing import Any

import data

from compare.bench import Bench
from compare.loaders import ENGINES, OURS
from compare.works.filters import between

AT_LEAST = 1.2
"""As fast as polars, in each work."""


def csv_files(bench: Bench) -> None:
    """Eight numeric columns of CSV, all rows, and 1% of them by a scattered key."""
    _read(bench, "csv", "CSV")
    scattered = between("l_partkey", *data.scattered_range())
    _read(bench, "csv", "CSV, 1% scattered", filters=scattered)


def json_files(bench: Bench) -> None:
    """The same rows as an object per line."""
    _read(bench, "json", "NDJSON")


def _read(bench: Bench, form: str, what: str, **parts: Any) -> None:
    request = bench.request(data.text(form), format=form, **parts)
    runs = bench.compare(what, request, [OURS, *ENGINES])
    bench.ratio(f"{what}: 1 × polars", runs, "polars", at_least=AT_LEAST)
