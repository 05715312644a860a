"""Normalization layers.

Shapes: T tokens, H heads, N features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Destination, parameter, whole
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import share


class Norm(Protocol):
    """What a layer of the decoder asks of its norms."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [..., N] normalized."""
        ...

    def add(self, delta: Tensor | None, residual: Tensor) -> Tensor:
        """Add delta [T, N] to residual [T, N] in place; return the residual normalized."""
        ...


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


class LayerNorm(nn.Module):
    """Layer norm over the last dimension (Ba, Kiros & Hinton 2016). weight, bias: whether it has them."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, num_features: int, eps: float, *, weight: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.has_weight = weight
        self.has_bias = bias

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make weight and bias; every rank has them."""
        self.weight = parameter((self.num_features,), dtype) if self.has_weight else None
        self.bias = parameter((self.num_features,), dtype) if self.has_bias else None

    def bind(self, binding: Binding) -> None:
        """Take the kernels."""
        self._norm, self._add_norm = binding.kernels.layer_norm, binding.kernels.add_layer_norm

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight` and `bias`."""
        return {name: whole(tensor) for name, tensor in self.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., N] normalized."""
        return self._norm(x, self.weight, self.bias, self.eps)

    def add(self, delta: Tensor | None, residual: Tensor) -> Tensor:
        """Add delta [T, N] to residual [T, N] in place; return the residual normalized."""
        if delta is None:
            return self._norm(residual, self.weight, self.bias, self.eps)
        return self._add_norm(delta, residual, self.weight, self.bias, self.eps)


class HeadsLayerNorm(nn.Module):
    """Layer norm of every head, each with a weight of its own and no bias."""

    weight: nn.Parameter

    def __init__(self, num_heads: int, num_features: int, eps: float) -> None:
        super().__init__()
        self.shape = (num_heads, num_features)
        self.eps = eps

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the weights of the heads that are here."""
        self.held = share(self.shape[0], mesh.tensor, repeat=True)
        self.weight = parameter((len(self.held), self.shape[1]), dtype)

    def bind(self, binding: Binding) -> None:
        """Take the kernel."""
        self._norm = binding.kernels.layer_norm

    def destinations(self) -> Mapping[str, Destination]:
        """Return `0.weight`, `1.weight`…: by head."""
        return {f"{head}.weight": whole(self.weight[head - self.held.start]) for head in self.held}

    def forward(self, x: Tensor) -> Tensor:
        """Return x [T, H, N] normalized."""
        return self._norm(x, self.weight, None, self.eps)
