"""Norms in Triton: root-mean-square and layer norm are one kernel, with or without the residual sum before it.

Shapes: T tokens, H heads (1 where there are none), N features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements of a program: small rows share one, large rows take more warps.
_TILE = 2048


@triton.jit(do_not_specialize=["num_rows"])
def _norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_heads,
    size,
    eps,
    x_token,
    x_head,
    residual_token,
    weight_head,
    bias_head,
    CENTER: tl.constexpr,
    ADD: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    tokens, heads = rows // num_heads, rows % num_heads
    columns = tl.arange(0, COLUMNS)[None, :]
    here = (rows < num_rows) & (columns < size)
    x = tl.load(x_ptr + tokens * x_token + heads * x_head + columns, mask=here, other=0.0).to(tl.float32)
    if ADD:
        places = residual_ptr + tokens * residual_token + columns
        total = x + tl.load(places, mask=here, other=0.0).to(tl.float32)
        # What is normalized is the stream as it is kept, rounded.
        rounded = total.to(residual_ptr.dtype.element_ty)
        tl.store(places, rounded, mask=here)
        x = rounded.to(tl.float32)
    if CENTER:
        x = tl.where(here, x - tl.sum(x, 1, keep_dims=True) / size, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / size + eps)
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + heads * weight_head + columns, mask=here, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + heads * bias_head + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows * size + columns, y.to(out_ptr.dtype.element_ty), mask=here)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `RmsNorm`."""
    return normalized(x, None, weight, None, eps, center=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `AddRmsNorm`."""
    return normalized(x, residual, weight, None, eps, center=False)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `LayerNorm`."""
    return normalized(x, None, weight, bias, eps, center=True)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See `AddLayerNorm`."""
    return normalized(x, residual, weight, bias, eps, center=True)


def normalized(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, *, center: bool
) -> Tensor:
    """Launch the kernel over all rows of x [..., N]; with a residual, x is added to it in place first. center: layer norm."""
    size, kept = x.shape[-1], x if residual is None else residual
    out = torch.empty(kept.shape, dtype=kept.dtype, device=x.device)
    if out.numel() == 0:
        return out
    x_THN = x if x.dim() == 3 else x.reshape(-1, 1, size)
    assert x_THN.stride(2) == 1 and (residual is None or (residual.dim() == 2 and residual.stride(1) == 1))
    num_rows, columns = out.numel() // size, triton.next_power_of_2(size)
    rows = max(1, _TILE // columns)
    _norm[(triton.cdiv(num_rows, rows),)](
        x_THN,
        residual,
        weight,
        bias,
        out,
        num_rows,
        x_THN.shape[1],
        size,
        eps,
        *x_THN.stride()[:2],
        0 if residual is None else residual.stride(0),
        weight.stride(0) if weight is not None and weight.dim() == 2 else 0,
        bias.stride(0) if bias is not None and bias.dim() == 2 else 0,
        CENTER=center,
        ADD=residual is not None,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=min(max(rows * columns // 512, 1), 16),
    )
    return out
