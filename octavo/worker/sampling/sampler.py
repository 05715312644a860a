"""From logits to one token a row: what requests change of them, what masks leave, then the choice (`octavo.ops.draw`).

Shapes: S sampling rows, m masked ones, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.ops.draw import Draw, Likeliest
from octavo.ops.draw.reference import likeliest
from octavo.worker.sampling.adjust import adjust
from octavo.worker.sampling.rows import SamplingBatch, SamplingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """ids: int64 [S]. ok: bool [S], False where a logit was NaN or +inf, or nothing could be chosen; the id is then void.

    logits: float32 [S, V], from which they were chosen: those of the model where nobody asked for a change.
    """

    ids: Tensor
    ok: Tensor
    logits: Tensor


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


def sample(
    logits: Tensor,
    rows: SamplingRows,
    batch: SamplingBatch,
    draw: Draw,
    masks: RowMasks | None = None,
    likeliest: Likeliest = likeliest,
) -> Sampled:
    """Choose a token for every row. logits: float32 [S, V], left as they are."""
    logits = adjust(logits, rows, batch.slots, batch.positions)
    if masks is not None:
        logits = masks.apply(logits)
    if rows.greedy[batch.slots].all():
        ids, ok = likeliest(logits)
    else:
        ids, ok = draw(logits, batch.targets, batch.positions, rows.reals, rows.wholes)
    return Sampled(ids=ids, ok=ok, logits=logits)
