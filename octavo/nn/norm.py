"""Normalization layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Destination, parameter, whole
from octavo.nn.parallel.mesh import Mesh


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (Zhang & Sennrich 2019)."""

    weight: nn.Parameter

    def __init__(self, num_features: int, eps: float) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the weight; every rank has it."""
        self.weight = parameter((self.num_features,), dtype)

    def bind(self, binding: Binding) -> None:
        """Take the kernels."""
        self._norm, self._add_norm = binding.kernels.rms_norm, binding.kernels.add_rms_norm

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`."""
        return {"weight": whole(self.weight)}

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., N] normalized."""
        return self._norm(x, self.weight, self.eps)

    def add(self, delta: Tensor | None, residual: Tensor) -> Tensor:
        """Add delta [T, N] to residual [T, N] in place; return the residual normalized."""
        if delta is None:
            return self._norm(residual, self.weight, self.eps)
        return self._add_norm(delta, residual, self.weight, self.eps)
