"""Logits by cuBLAS: narrow factors, sums and result in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """See `Logits`."""
    return torch.mm(hidden, weight.T, out_dtype=torch.float32)
