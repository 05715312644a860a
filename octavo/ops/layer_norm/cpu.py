"""Layer norm by the processor's kernels."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.rms_norm.cpu import normalized


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `LayerNorm`."""
    return normalized(x, None, weight, bias, eps, centered=True)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `AddLayerNorm`."""
    return normalized(x, residual, weight, bias, eps, centered=True)
