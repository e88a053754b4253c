"""The loaders: each is a module with one function, ``open_batches``, that reads what a `Request` asks for.

It yields a dict of tensors per batch, by the way that the library's own documentation recommends for speed. What takes place
before the clock starts is the import of the modules and ``prepare``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from compare.request import Request

Batches = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Loader:
    """A loader by name, and what it can do."""

    module: str
    """Its module here, imported in the process that measures it."""

    imports: tuple[str, ...]
    """Modules that it needs; it is skipped if one is missing."""

    can: frozenset[str]
    """Names of `Request.needs`; projections can all."""

    def load(self) -> tuple[Callable[[Request], None], Callable[[Request], Iterable[Any]]]:
        """Import it; what to call before the clock starts, and what opens the batches."""
        for name in self.imports:
            importlib.import_module(name)
        module = importlib.import_module(f"compare.loaders.{self.module}")
        return getattr(module, "prepare", lambda request: None), module.open_batches


def _loader(module: str, imports: str, can: str) -> Loader:
    return Loader(module, tuple(imports.split()), frozenset(can.split()))


OURS = "tensorquery"
BARE = "import torch"
"""Not a loader: a process that imports torch, from which on memory is counted."""

LOADERS = {
    OURS: _loader("ours", "tensorquery.loading.create", "filters stack shuffle workers ranks text"),
    "torch-dataloader-utils": _loader(
        "dataloader_utils",
        "torch_dataloader_utils pyarrow.dataset pyarrow.parquet",
        "filters stack shuffle workers",
    ),
    "datasets": _loader(
        "hugging_face", "datasets pyarrow.parquet", "filters stack shuffle workers"
    ),
    "Ray Data": _loader("ray_data", "ray.data", "filters stack shuffle"),
    "pyarrow": _loader("arrow", "pyarrow.dataset pyarrow.parquet", "filters stack text"),
    "DuckDB": _loader("duck", "duckdb pyarrow", "filters stack text"),
    "polars": _loader("polar", "polars", "filters stack text"),
    "lance": _loader("lance_scan", "lance.torch.data", ""),
    "LanceDB": _loader("lance_stream", "lancedb lancedb.streaming", "shuffle"),
    BARE: _loader("bare", "", ""),
}

PEERS = tuple(name for name in LOADERS if name not in (OURS, BARE))
ENGINES = ("DuckDB", "polars", "pyarrow")
"""Peers that filter while they read."""
