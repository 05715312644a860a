"""The tensors of files that torch pickled (pytorch_model.bin). Only tensors are unpickled, never code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from octavo.base.errors import CheckpointError
from octavo.worker.loader.weights import Incoming, indexed


def pt_weights(files: Sequence[str]) -> Iterator[Incoming]:
    """Yield the tensors of pickled files, one file at a time and mapped; raises CheckpointError naming what is not one."""
    for path, is_wanted in indexed(files, "pt"):
        for name, held in _unpickled(path).items():
            if not isinstance(held, Tensor):
                raise CheckpointError(f"{path}: {name} is not a tensor but {type(held).__name__}")
            if is_wanted(name):
                yield _held(path, name, held)


def _unpickled(path: str) -> dict[str, Any]:
    try:
        try:
            found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files older than PyTorch 1.6 are no archives, and cannot be mapped
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: holds more than tensors, or is damaged; it is not loaded: {reason}") from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: must hold named tensors, not {type(found).__name__}")
    return found


def _held(path: str, name: str, held: Tensor) -> Incoming:
    def read(cut: tuple[slice, ...], into: Tensor) -> None:
        if not held.is_floating_point() or held.element_size() == 1:
            raise CheckpointError(
                f"{path}: tensor {name} is of type {held.dtype}; Octavo reads float types of 2 to 8 bytes"
            )
        into.copy_(held[cut])

    return Incoming(name=name, file=path, shape=tuple(held.shape), read=read)
