"""Batches on the device of the model: each is copied while the training step of the one before it runs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from tensorquery.errors import ConfigError
from tensorquery.loading.ahead import Copies

__all__ = ["checked_device", "copies_to"]


def checked_device(device: Any, output_format: str) -> torch.device | None:
    """The device where batches go; None where they stay in the memory of the CPU.

    Raises:
        ConfigError: There is no such device here, or batches are not tensors.
    """
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise ConfigError(
            f"device must be a torch.device, its name or a number, not {device!r}; for example "
            'device="cuda"'
        )
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device={device!r} is no device of torch: {error}") from error
    if output_format not in ("torch", "kjt"):
        raise ConfigError(
            f'device={str(wanted)!r} is for tensors; choose output_format="torch" instead of {output_format!r}, or leave '
            f"device out{' (sharding= places JAX arrays)' if output_format == 'jax' else ''}"
        )
    if wanted.type not in ("cpu", "cuda"):
        try:
            torch.empty(0, device=wanted)
        except Exception as error:  # each kind of device has its own
            why = str(error).partition("\n")[0]
            raise ConfigError(
                f"device={str(wanted)!r} cannot be used here: {why}; name another device, or leave it out and move batches "
                "yourself"
            ) from error
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (wanted.index or 0) >= count:
            raise ConfigError(
                f"device={str(wanted)!r}: torch finds {count} CUDA device(s) here; name another device, or leave it out and "
                "move batches yourself"
            )
    return None if wanted.type == "cpu" else wanted


def copies_to(device: torch.device) -> Copies:
    """Copies to a device; to a GPU on a stream of their own, beside what the training step has queued."""
    if device.type == "cuda":
        return _CudaCopies(device)

    def begin(batch: Any) -> Callable[[], Any]:
        moved = _moved(batch, device)
        return lambda: moved

    return begin


class _CudaCopies:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Made by the first copy: a stream belongs to the process that uses it.
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, batch: Any) -> Callable[[], Any]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            moved = _moved(batch, self._device)
            copied = self._stream.record_event()

        def arrived() -> Any:
            # The step waits on the GPU, not here; and its memory is not given to a later copy while the step uses it.
            step = torch.cuda.current_stream(self._device)
            step.wait_event(copied)

            def keep(tensor: torch.Tensor) -> None:
                # Lengths of a packed sequence have stayed.
                if tensor.is_cuda:
                    tensor.record_stream(step)

            _each_tensor(moved, keep)
            return moved

        return arrived


def _moved(found: Any, device: torch.device) -> Any:
    """Copy all tensors to `device`; a copy from pinned memory goes on in the background."""
    if isinstance(found, torch.Tensor):
        return found.to(device, non_blocking=True)
    if isinstance(found, PackedSequence):
        # Its lengths stay where torch wants them.
        return found.to(device, non_blocking=True)  # type: ignore[arg-type]
    if _is_keyed(found):
        return found.to(device, non_blocking=True)
    if isinstance(found, Mapping):
        return _alike(found, {name: _moved(value, device) for name, value in found.items()})
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*(_moved(value, device) for value in found))
    if isinstance(found, list | tuple):
        # Strings, mostly.
        has_tensors = any(not isinstance(value, str | bytes) for value in found)
        kind: Any = type(found)
        return kind(_moved(value, device) for value in found) if has_tensors else found
    return found


def _is_keyed(found: Any) -> bool:
    """Whether it is a `KeyedJaggedTensor` of TorchRec."""
    torchrec = sys.modules.get("torchrec.sparse.jagged_tensor")
    return torchrec is not None and isinstance(found, torchrec.KeyedJaggedTensor)


def _alike(found: Mapping[Any, Any], moved: dict[Any, Any]) -> Any:
    """A mapping of the kind of `found` with other values: a defaultdict, or what a tokenizer returns."""
    if type(found) is dict or not isinstance(found, MutableMapping):
        return moved
    others = copy.copy(found)
    for name, value in moved.items():
        others[name] = value
    return others


def _each_tensor(found: Any, call: Callable[[torch.Tensor], Any]) -> None:
    if isinstance(found, torch.Tensor):
        if found.is_nested:
            call(found.values())
            call(found.offsets())  # type: ignore[attr-defined]
        else:
            call(found)
    elif _is_keyed(found):
        for tensor in (found.values(), found.lengths(), found.weights_or_none()):
            if tensor is not None:
                call(tensor)
    elif isinstance(found, Mapping):
        for value in found.values():
            _each_tensor(value, call)
    elif isinstance(found, list | tuple):
        for value in found:
            if not isinstance(value, str | bytes):
                _each_tensor(value, call)
