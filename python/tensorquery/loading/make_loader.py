"""The loader over a dataset: a `QueryDataLoader` where PyTorch is installed, else a `QueryLoader`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from tensorquery._util.optional import has_torch, needing_torch
from tensorquery.errors import ConfigError
from tensorquery.loading.dataset import QueryDataset
from tensorquery.loading.jax_arrays import Placement
from tensorquery.loading.loader import QueryLoader
from tensorquery.loading.tensors import check_output_format

if TYPE_CHECKING:
    import torch

    from tensorquery.loading.dataloader import QueryDataLoader

__all__ = ["TORCH_KEYWORDS", "check_torch", "make_loader"]

TORCH_KEYWORDS = (
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Keywords of torch's DataLoader that `create_dataloader` passes on."""


def check_torch(
    output_format: str,
    num_workers: int | None,
    device: Any | None,
    accelerator: Any | None,
    others: Mapping[str, Any],
) -> None:
    """Refuse, where PyTorch is not installed, what needs it, before anything is read.

    Args:
        output_format: How batches come out.
        num_workers: Worker processes.
        device: Where torch puts batches.
        accelerator: Of Hugging Face.
        others: Keywords of torch's DataLoader.

    Raises:
        ImportError: One of them is given; names it and the command that installs torch.
    """
    if has_torch():
        return
    if output_format in ("torch", "kjt"):
        check_output_format(output_format)
    asked = {
        f"num_workers={num_workers!r}, which starts processes of its DataLoader,": num_workers != 0,
        f"device={device!r}": device is not None,
        "accelerator=": accelerator is not None,
        **{f"{name}={value!r}": True for name, value in others.items()},
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ImportError(
                f"{what} needs PyTorch, which is not installed: pip install torch, or leave it out (threads of this process "
                "decode ahead; transform_threads= runs transform beside them, and sharding= places JAX arrays)",
                name="torch",
            )


def make_loader(
    dataset: QueryDataset,
    collate_fn: Callable[[Any], Any] | None,
    num_workers: int,
    device: torch.device | None,
    placement: Placement | None,
    keywords: dict[str, Any],
) -> QueryDataLoader:
    """Make the loader of a dataset.

    Args:
        dataset: The dataset.
        collate_fn: Called on each batch.
        num_workers: Worker processes.
        device: Where torch puts batches; None leaves them.
        placement: Where JAX puts them; None for other arrays.
        keywords: Of torch's DataLoader.

    Raises:
        ConfigError: torch refuses an option.
    """
    if not has_torch():
        # A `QueryLoader`, which type checkers, of programs with torch, may take for the other.
        return cast("QueryDataLoader", QueryLoader(dataset, collate_fn, placement))
    torch_loader = needing_torch("tensorquery.loading.dataloader", "QueryDataLoader")
    copies: Any = placement
    if device is not None:
        copies = needing_torch("tensorquery.loading.devices", "copies_to")(device)
        if device.type == "cuda":
            # Only a copy from pinned memory goes on beside the training step.
            keywords.setdefault("pin_memory", True)
    if dataset._plan.deal.assignment == "dynamic" and num_workers:
        _check_dynamic(num_workers, keywords)
    try:
        loader: QueryDataLoader = torch_loader(
            dataset, collate_fn, copies, num_workers=num_workers, **keywords
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"torch's DataLoader refuses these options: {error}") from error
    return loader


def _check_dynamic(num_workers: int, keywords: dict[str, Any]) -> None:
    """Refuse what makes workers wait for one another, where they take splits as they come."""
    import torch

    if keywords.setdefault("in_order", False):
        raise ConfigError(
            'in_order=True makes every worker wait for the slowest one, which assignment="dynamic" is there to '
            'avoid; leave in_order out, or use assignment="static"'
        )
    if "in_order" not in inspect.signature(torch.utils.data.DataLoader).parameters:
        raise ConfigError(
            f'assignment="dynamic" with num_workers={num_workers} needs torch 2.6 or newer, and this is torch '
            f"{torch.__version__}, whose DataLoader waits for the slowest worker: update torch, or use "
            'assignment="static" or num_workers=0'
        )
