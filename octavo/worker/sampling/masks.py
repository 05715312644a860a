"""Masks of tokens that may come, as they reach the device. Shapes: S sampling rows, m masked ones, V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMasks:
    """rows: int64 [m], which of the S rows; None for all of them in order. bits: uint8 [m, at least V / 8], lowest bit first."""

    rows: Tensor | None
    bits: Tensor

    def apply(self, logits: Tensor) -> Tensor:
        """Return logits, float32 [S, V], a copy in which what may not come is -inf."""
        shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
        forbidden = (self.bits[:, :, None] >> shifts).bitwise_and_(1).eq_(0).view(torch.bool)
        forbidden = forbidden.flatten(1)[:, : logits.shape[1]]
        if self.rows is None:
            return logits.masked_fill(forbidden, float("-inf"))
        return logits.index_copy(0, self.rows, logits[self.rows].masked_fill_(forbidden, float("-inf")))
