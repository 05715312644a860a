"""What Triton's kernels have to know of the device they are compiled for."""

from __future__ import annotations

from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

# Bytes of shared memory that a program may have, by compute capability.
_SHARED = {80: 163 * 1024, 87: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 103: 227 * 1024}
_LEAST_SHARED, _AMD_SHARED = 99 * 1024, 64 * 1024


def shared_bytes() -> int:
    """Return how many bytes of shared memory a program may have."""
    if knobs.runtime.interpret:
        return _LEAST_SHARED
    target: Any = driver.active.get_current_target()
    return _SHARED.get(target.arch, _LEAST_SHARED) if target.backend == "cuda" else _AMD_SHARED


def precision_of(dtype: torch.dtype) -> str:
    """Return how products are made: those of float32 on NVIDIA's matrix units in three parts, which loses nothing that counts."""
    if dtype != torch.float32 or knobs.runtime.interpret:
        return "ieee"
    target: Any = driver.active.get_current_target()
    return "tf32x3" if target.backend == "cuda" else "ieee"
