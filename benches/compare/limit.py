"""The decode limit: `benches/decode`, which decodes with the `parquet` crate and makes no tensors."""

from __future__ import annotations

from pathlib import Path

from data.once import DATA

from compare.request import Request

LIMIT = "decode limit"
PROGRAM = DATA / "decode"
"""Where ``make bench`` puts the program, compiled in the profile of what is measured."""

BATCH_SIZE = 8192


def decode_command(request: Request) -> list[str]:
    """The program on the files, columns and cores of a request; its batch size is the same for all."""
    columns = [] if request.columns is None else ["--columns", ",".join(request.columns)]
    files = sorted(Path().glob(request.files))
    return [
        str(PROGRAM), "--batch-size", str(BATCH_SIZE), "--threads", str(request.threads),
        *columns, *map(str, files),
    ]  # fmt: skip
