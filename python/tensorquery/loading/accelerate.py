"""Hugging Face Accelerate: a loader that counts as prepared, and the places where rows would be lost.

Accelerate's own ``prepare`` rebuilds every loader: one over an iterable dataset is read by rank 0 alone and
its batches are dealt out again, which would deliver rank 0's shard and no other. A `QueryDataLoader`
already holds its rank's share. So it says that it is prepared, ``prepare`` returns it unchanged, and what a
prepared loader owes to Accelerate is done here: batches move to the device, and `GradientState` learns
which loader is active and when its last batch is out (gradient accumulation steps on it).

Nothing here imports accelerate: without an `Accelerator` in the program there is nothing to do.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorquery.errors import ConfigError

__all__ = [
    "AcceleratePrepared",
    "Turn",
    "begin",
    "check_accelerator",
    "device_of",
    "place_of",
    "refuse_foreign",
]

# The dimensions of Accelerate's mesh along which processes read different rows.
_DATA_PARALLEL = {"dp_replicate", "dp_shard"}


class AcceleratePrepared:
    """The attributes that Accelerate reads on a prepared loader; a base class of `QueryDataLoader`.

    Attributes:
        end_of_dataloader: Whether the batch delivered last is the last of its epoch.
        remainder: What `Accelerator.gather_for_metrics` cuts off the last batches: 0 for nothing, -1 for
            "not known" where ``remainder="pad"`` has repeated rows, which stand in every rank's last batch
            and not only at the end.
        use_stateful_dataloader: `Accelerator.save_state` stores this loader's state, and ``load_state``
            loads it.
    """

    dataset: Any
    use_stateful_dataloader = True
    end_of_dataloader = False
    remainder = -1
    _asked = False
    """Whether an `Accelerator` has prepared this loader."""
    _turn: Turn | None = None

    # `prepare_data_loader` reads this, and `prepare` sets it too. Whichever it is, Accelerate has taken
    # charge of the loader, and expects batches on its device from now on.
    @property
    def _is_accelerate_prepared(self) -> bool:
        if _accelerate_state() is not None:
            self._asked = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._asked = prepared

    @property
    def total_batch_size(self) -> int:
        """Rows of a full step over all ranks."""
        return int(self.dataset.batch_size * self.dataset.world_size)


class Turn:
    """One iteration over a prepared loader; made by `begin`."""

    def __init__(self, loader: AcceleratePrepared, gradient_state: Any, device: Any | None) -> None:
        self._loader = loader
        self._gradient_state = gradient_state
        self._device = device
        # Only a copy from pinned memory can overlap with computing.
        self._non_blocking = bool(getattr(loader, "pin_memory", False))

    def deliver(self, batch: Any, last: bool) -> Any:
        """Move a batch to Accelerate's device, and say whether it is the epoch's last one.

        Call it right before the batch is handed out.
        """
        if self._device is not None:
            send = sys.modules["accelerate.utils"].send_to_device
            batch = send(batch, self._device, non_blocking=self._non_blocking)
        self._loader.end_of_dataloader = last
        return batch

    def end(self) -> None:
        """Take the loader off Accelerate's list; nothing where a newer iteration has begun."""
        if self._loader._turn is self:
            self._loader._turn = None
            self._gradient_state._remove_dataloader(self._loader)


def check_accelerator(accelerator: Any) -> None:
    """Refuse an object that is not an `Accelerator`.

    Args:
        accelerator: What a user gave as ``accelerator=``.

    Raises:
        ConfigError: It is something else; names its type.
    """
    module = sys.modules.get("accelerate")
    if module is None or not isinstance(accelerator, module.Accelerator):
        raise ConfigError(
            f"accelerator={accelerator!r} is a {type(accelerator).__name__}; expected an "
            "accelerate.Accelerator"
        )


def place_of(accelerator: Any) -> tuple[int, int]:
    """Rank and world size of this process in an `Accelerator`.

    Args:
        accelerator: Says them, as long as all of its processes read different rows.

    Raises:
        ConfigError: In its mesh some processes need the same rows; names the dimensions.
    """
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if mesh is not None:
        others = [name for name in mesh.mesh_dim_names or () if name not in _DATA_PARALLEL]
        if any(mesh[name].size() > 1 for name in others):
            raise ConfigError(
                f"the accelerator's mesh {tuple(mesh.mesh_dim_names)} has processes that need the same rows "
                f"({', '.join(others)}); say along which dimensions the data are divided, for example "
                'device_mesh=accelerator.torch_device_mesh["dp_shard"]'
            )
    return accelerator.process_index, accelerator.num_processes


def begin(loader: AcceleratePrepared) -> Turn | None:
    """Tell Accelerate that an iteration over `loader` begins.

    Args:
        loader: The loader, each time that it starts to deliver.

    Returns:
        What to call for every batch and at the end, or None where no `Accelerator` has prepared the
        loader.
    """
    state = _accelerate_state()
    if state is None or not loader._asked:
        return None
    gradient_state = state.GradientState()
    loader.end_of_dataloader = False
    loader.remainder = -1 if getattr(loader.dataset, "remainder", None) == "pad" else 0
    # An iteration that was left without being closed may still stand in the list.
    gradient_state._remove_dataloader(loader)
    gradient_state._add_dataloader(loader)
    loader._turn = Turn(loader, gradient_state, device_of(loader))
    return loader._turn


def device_of(loader: AcceleratePrepared) -> Any | None:
    """The `torch.device` to which batches go, or None where they stay: not prepared, or on the CPU."""
    state = _accelerate_state()
    if state is None or not loader._asked:
        return None
    device = state.PartialState().device
    return None if device.type == "cpu" else device


def refuse_foreign(dataset: object) -> None:
    """Refuse to be read through a loader that Accelerate made around the dataset and that loses rows.

    Accelerate registers a loader right before it starts it, in the training process and on every rank. So
    this is called where that loader turns to the dataset next: by ``set_epoch`` (before workers start, on
    all ranks alike, so that none waits for another), by ``iter`` and by pickling for a spawned worker.

    Raises:
        ConfigError: The active loader deals out one rank's batches to all ranks, or takes a part of each
            rank's own share, or reads batches only to skip them.
    """
    state = _accelerate_state()
    if state is None or state.GradientState._shared_state == {}:
        return
    active = state.GradientState().active_dataloader
    if active is None or isinstance(active, AcceleratePrepared):
        return
    kinds = {kind.__name__ for kind in type(active).__mro__}
    inner = getattr(active, "dataset", None)
    while inner is not None and inner is not dataset:
        kinds.update(kind.__name__ for kind in type(inner).__mro__)
        inner = getattr(inner, "dataset", None)
    if inner is None:
        return
    if "SkipDataLoader" in kinds:
        raise ConfigError(
            "skip_first_batches() on a tensorquery loader would read the batches only to drop them, and "
            "skip them twice where a state was loaded; call accelerator.load_state() or "
            "loader.load_state_dict(), and iterate over the loader itself"
        )
    processes = state.PartialState().num_processes
    if processes > 1 and kinds & {"DataLoaderDispatcher", "IterableDatasetShard"}:
        raise ConfigError(
            f"accelerator.prepare() was given a {_name_of(active)} around a QueryDataset, with {processes} "
            "processes: it would deal out a single rank's rows to all ranks and lose the others'. Prepare "
            "the loader of create_dataloader() instead, which holds each rank's own share, or do not "
            "prepare this one"
        )


def _name_of(active: Any) -> str:
    return type(getattr(active, "base_dataloader", active)).__name__


def _accelerate_state() -> Any | None:
    """The module `accelerate.state` where the program has made an `Accelerator`."""
    module = sys.modules.get("accelerate.state")
    if module is None or not hasattr(module, "GradientState"):
        return None
    return None if module.PartialState._shared_state == {} else module
