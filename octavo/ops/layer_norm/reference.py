"""Layer norm in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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
