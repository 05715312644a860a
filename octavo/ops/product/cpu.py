"""Products by the processor's kernels while rows are few: reading the weight is then all there is to do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.native import DTYPES, NativeOp

_PRODUCT = NativeOp("product", "pppp qqqq qq")
# Beyond these rows the tensor library's blocked products are faster.
_FEW = {torch.float32: 8, torch.bfloat16: 64, torch.float16: 4}


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `Product`."""
    if x.dim() != 2 or len(x) > _FEW[x.dtype] or x.stride(1) != 1 or not weight.is_contiguous():
        return F.linear(x, weight, bias)
    return _few(x, weight, bias, x.dtype)


def logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """See `Logits`."""
    assert hidden.stride(1) == 1 and weight.is_contiguous()
    out = [_few(rows, weight, None, torch.float32) for rows in hidden.split(_FEW[hidden.dtype])]
    return out[0] if len(out) == 1 else torch.cat(out)


def _few(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    out = torch.empty((len(x), len(weight)), dtype=dtype)
    _PRODUCT(x, weight, bias, out, len(x), x.shape[1], len(weight), x.stride(0), DTYPES[x.dtype], DTYPES[dtype])
    return out
