"""From logits to one token a row: what requests change of them, then the choice (`octavo.ops.draw`)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo.ops.draw import Draw
from octavo.ops.likeliest import Likeliest
from octavo.ops.likeliest.reference import likeliest
from octavo.worker.sampling.adjust import adjust
from octavo.worker.sampling.masks import RowMasks
from octavo.worker.sampling.rows import SamplingBatch, SamplingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """ids: int64 [S]. ok: bool [S], False where a logit was NaN or +inf, or nothing could be chosen; the id is then void.

    logits: float32 [S, V], from which they were chosen: those of the model where nobody asked for a change.
    """

    ids: Tensor
    ok: Tensor
    logits: Tensor


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
