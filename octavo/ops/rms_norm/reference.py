"""Root-mean-square and layer norm in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `RmsNorm`."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `AddRmsNorm`."""
    residual += x
    return rms_norm(residual, weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `LayerNorm`."""
    normal = F.layer_norm(x.float(), x.shape[-1:], eps=eps)
    if weight is not None:
        normal.mul_(weight)
    if bias is not None:
        normal.add_(bias)
    return normal.to(x.dtype)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `AddLayerNorm`."""
    residual += x
    return layer_norm(residual, weight, bias, eps)
