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
        # A byte's eight bits as eight bytes, looked up at once.
        bits = torch.arange(256, device=logits.device)[:, None] >> torch.arange(8, device=logits.device)
        allowed = bits.bitwise_and_(1).bool().view(torch.int64)[:, 0][self.bits.int()]
        allowed = allowed.view(torch.bool)[:, : logits.shape[1]]
        if self.rows is None:
            return torch.where(allowed, logits, float("-inf"))
        return logits.index_copy(0, self.rows, torch.where(allowed, logits[self.rows], float("-inf")))
