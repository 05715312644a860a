"""Triton's driver of a GPU that is not here: kernels are compiled for it, and nothing is launched."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

# Triton's own types say less than it takes.
_Base: Any = DriverBase


class AbsentDriver(_Base):
    """target: what kernels are compiled for. device: where the tensors of launches are, "cpu" or "meta"."""

    def __init__(self, target: GPUTarget, device: str) -> None:
        self._target = target
        self._device = torch.device(device)
        # What compiles a kernel's launcher; nothing is launched.
        self.launcher_cls: Any = lambda source, metadata: None

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return self._device

    def map_python_to_cpp_type(self, name: str) -> str:
        return name

    def get_benchmarker(self) -> Any:
        raise NotImplementedError
