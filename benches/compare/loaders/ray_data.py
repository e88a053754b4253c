"""Ray Data: ``read_parquet`` and ``iter_torch_batches``; the cluster of this machine starts before the clock does."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.data.expressions import col

from compare.loaders.tensors import stacked
from compare.request import Request

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def prepare(request: Request) -> None:
    ray.init(
        num_cpus=request.threads,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    columns = None if request.columns is None else list(request.columns)
    rows = ray.data.read_parquet(str(Path(request.path).absolute()), columns=columns)
    for column, comparison, value in request.filters:
        rows = rows.filter(expr=_OPERATORS[comparison](col(column), value))
    batches = rows.iter_torch_batches(
        batch_size=request.batch_size,
        prefetch_batches=4,
        local_shuffle_buffer_size=request.shuffle_buffer,
        local_shuffle_seed=None if request.shuffle_buffer is None else 42,
    )
    for batch in batches:
        yield stacked(batch, request)
