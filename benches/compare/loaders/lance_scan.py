"""Lance's ``LanceDataset``: an ordered scan in batches, of converted data; it neither mixes rows nor resumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lance.torch.data import LanceDataset

from compare.loaders.lance_data import convert
from compare.request import Request


def prepare(request: Request) -> None:
    convert(request)


def open_batches(request: Request) -> Iterator[dict[str, Any]]:
    columns = None if request.columns is None else list(request.columns)
    dataset = LanceDataset(
        str(convert(request)),
        batch_size=request.batch_size,
        columns=columns,
        auto_detect_rank=False,
    )
    for batch in dataset:
        # One column comes as a tensor by itself.
        yield batch if isinstance(batch, dict) else {(columns or ["rows"])[0]: batch}
