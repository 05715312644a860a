"""RMS norm by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import DTYPES, NativeOp, packed

_RMS_NORM = NativeOp("rms_norm", "pppp qqqqq qqq d")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `RmsNorm`."""
    return _normalized(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `AddRmsNorm`."""
    return _normalized(x, residual, weight, eps)


def _normalized(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    size, kept = x.shape[-1], x if residual is None else residual
    out = torch.empty(kept.shape, dtype=kept.dtype)
    x = packed(x if x.dim() == 3 else x.reshape(-1, 1, size))
    assert x.dtype == kept.dtype and weight.is_contiguous() and (residual is None or residual.stride(1) == 1)
    strides = x.stride(0), x.stride(1), 0 if residual is None else residual.stride(0)
    shape = out.numel() // size, x.shape[1], size
    _RMS_NORM(x, residual, weight, out, DTYPES[x.dtype], DTYPES[weight.dtype], *shape, *strides, eps)
    return out
