"""Layer norm in Triton; the kernel is that of the root-mean-square norm."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.rms_norm.triton import normalized


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `LayerNorm`."""
    return normalized(x, None, weight, bias, eps, center=True)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `AddLayerNorm`."""
    return normalized(x, residual, weight, bias, eps, center=True)
