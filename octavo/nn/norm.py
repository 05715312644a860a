"""Normalization layers.

Shapes: T tokens, H heads, N features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Destination, nothing, parameter, whole
from octavo.nn.parallel.collectives import all_reduce
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
    """Root-mean-square norm over the last dimension (Zhang & Sennrich 2019). weight: whether it has one, or ones."""

    weight: Tensor

    def __init__(self, num_features: int, eps: float, *, weight: bool = True) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.has_weight = weight

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the weight; every rank has it."""
        if self.has_weight:
            self.weight = parameter((self.num_features,), dtype)

    def bind(self, binding: Binding) -> None:
        """Take the kernels."""
        if not self.has_weight:
            self.weight = torch.ones(self.num_features, dtype=getattr(torch, binding.dtype), device=binding.device)
        self._norm, self._add_norm = binding.kernels.rms_norm, binding.kernels.add_rms_norm

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`."""
        return {"weight": whole(self.weight)} if self.has_weight else {}

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., N] normalized."""
        return self._norm(x, self.weight, self.eps)

    def add(self, delta: Tensor | None, residual: Tensor) -> Tensor:
        """Add delta [T, N] to residual [T, N] in place; return the residual normalized."""
        if delta is None:
            return self._norm(residual, self.weight, self.eps)
        return self._add_norm(delta, residual, self.weight, self.eps)


class OffsetRMSNorm(RMSNorm):
    """RMS norm whose checkpoint holds what is added to a scale of one (Gemma). Both are float32: no digit is lost."""

    stored: nn.Parameter

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make what the checkpoint holds; every rank has it."""
        self.stored = parameter((self.num_features,), torch.float32)

    def bind(self, binding: Binding) -> None:
        """Take the kernels, and memory for the scale."""
        super().bind(binding)
        self.weight = torch.ones(self.num_features, device=binding.device)

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`."""
        return {"weight": whole(self.stored)}

    def finalize(self) -> None:
        """Settle the scale."""
        self.weight.copy_(self.stored + 1)


class ProjectionRMSNorm(nn.Module):
    """RMS norm over all heads of a projection together, of which ranks have some each."""

    weight: nn.Parameter

    def __init__(self, num_heads: int, num_features: int, eps: float) -> None:
        super().__init__()
        self.shape = (num_heads, num_features)
        self.eps = eps

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the weights of the heads that are here."""
        self.axis = mesh.tensor
        held = share(self.shape[0], self.axis, repeat=True)
        self.held = slice(held.start * self.shape[1], held.stop * self.shape[1])
        self.weight = parameter((self.held.stop - self.held.start,), dtype)

    def bind(self, binding: Binding) -> None:
        """Take the sum over ranks."""
        self._reduce = all_reduce(self.axis)

    def destinations(self) -> Mapping[str, Destination]:
        """Return `weight`."""
        whole_shape = (self.shape[0] * self.shape[1],)
        return {"weight": Destination(tensor=self.weight, shape=whole_shape, cut=(self.held,))}

    def forward(self, x: Tensor) -> Tensor:
        """Return x [T, H, N] normalized, computed in float32 and rounded once."""
        wide = x.flatten(1).float()
        # Every rank has equally many heads, and every head is on equally many ranks.
        mean = self._reduce(wide.square().mean(-1, keepdim=True)) / self.axis.size
        return (wide * (mean + self.eps).rsqrt() * self.weight).to(x.dtype).view(x.shape)


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
        return {
            f"{head}.weight": whole(self.weight[head - self.held.start])
            if head in self.held
            else nothing(self.shape[1:])
            for head in range(self.shape[0])
        }

    def forward(self, x: Tensor) -> Tensor:
        """Return x [T, H, N] normalized."""
        return self._norm(x, self.weight, None, self.eps)
