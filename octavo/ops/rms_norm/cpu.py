"""Norms by the processor's kernels: root-mean-square and layer norm are one, with or without the residual sum before it."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import DTYPES, NativeOp, packed

_NORM = NativeOp("norm", "ppppp qqqqq qqqqqq d")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `RmsNorm`."""
    return normalized(x, None, weight, None, eps, centered=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `AddRmsNorm`."""
    return normalized(x, residual, weight, None, eps, centered=False)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `LayerNorm`."""
    return normalized(x, None, weight, bias, eps, centered=True)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `AddLayerNorm`."""
    return normalized(x, residual, weight, bias, eps, centered=True)


def normalized(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, *, centered: bool
) -> Tensor:
    """Normalize x [..., N]; with a residual, x is added to it in place first. centered: layer norm."""
    size, kept = x.shape[-1], x if residual is None else residual
    out = torch.empty(kept.shape, dtype=kept.dtype)
    x = packed(x if x.dim() == 3 else x.reshape(-1, 1, size))
    assert x.dtype == kept.dtype and (residual is None or residual.stride(1) == 1)
    assert weight is None or bias is None or weight.dtype == bias.dtype
    terms = [None if term is None else packed(term) for term in (weight, bias)]
    dtype = next((term.dtype for term in terms if term is not None), x.dtype)
    heads = (term.stride(0) if term is not None and term.dim() == 2 else 0 for term in terms)
    strides = x.stride(0), x.stride(1), 0 if residual is None else residual.stride(0), *heads
    shape = out.numel() // size, x.shape[1], size
    _NORM(x, residual, *terms, out, DTYPES[x.dtype], DTYPES[dtype], *shape, *strides, centered, eps)
    return out
