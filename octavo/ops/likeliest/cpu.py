"""The likeliest token by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import NativeOp, packed

_LIKELIEST = NativeOp("likeliest", "ppp qqq")


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `Likeliest`."""
    logits = packed(logits)
    assert logits.dtype == torch.float32
    ids, ok = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.bool)
    _LIKELIEST(logits, ids, ok, *logits.shape, logits.stride(0))
    return ids, ok
