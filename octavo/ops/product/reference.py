"""Logits in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of the table widened to float32 at a time, for other dtypes.
_TILE = 8192


def logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """See `Logits`."""
    if weight.dtype == torch.float32:
        return F.linear(hidden, weight)
    wide = hidden.float()
    return torch.cat([F.linear(wide, rows.float()) for rows in weight.split(_TILE)], -1)
