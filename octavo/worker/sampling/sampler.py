"""From logits to one token a row, in one pass over [S, V]; S sampling rows, V vocabulary.

Order of the transforms: those of `adjust`, temperature, min_p, top_k, top_p (each renormalizes what is left). Tokens are drawn by
inverting the distribution function in id order: a rounding difference in the logits then almost never changes the token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.protocol.sampling import GREEDY_BELOW
from octavo.worker.sampling.adjust import adjust
from octavo.worker.sampling.filters import keep_top
from octavo.worker.sampling.rows import CHOICE, SEED, TOP_K, SamplingRows, SlotArray
from octavo.worker.sampling.uniform import uniform

# Random rows are drawn in slices of at most this many float64 weights: on a host 8 MiB, which also keeps them in the cache.
_SLICE, WIDE_SLICE = 2**20, 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """ids: int64 [S]. ok: bool [S], False where a logit was NaN or +inf, or nothing could be chosen; the id is then void.

    logits: float32 [S, V], from which they were chosen: those of the model where nobody asked for a change.
    """

    ids: Tensor
    ok: Tensor
    logits: Tensor


def greedy(logits: Tensor) -> Sampled:
    """Choose every row's likeliest token. logits: float32 [S, V]."""
    peaks, ids = logits.max(dim=1)
    return Sampled(ids=ids, ok=peaks.isfinite(), logits=logits)


def sample(logits: Tensor, rows: SamplingRows, slots: SlotArray, positions: Tensor) -> Sampled:
    """Choose a token for every row.

    logits: float32 [S, V], left as they are. slots: int64 [S], whose parameters in `rows` count. positions: int64 [S], of
    the tokens to be chosen in their sequences.
    """
    logits = adjust(logits, rows, slots, positions)
    peaks, ids = logits.max(dim=1)
    ok = peaks.isfinite()
    drawn = np.flatnonzero(~rows.greedy[slots])
    if len(drawn) == 0:
        return Sampled(ids=ids, ok=ok, logits=logits)
    size = max(1, (_SLICE if logits.device.type == "cpu" else WIDE_SLICE) // logits.shape[1])
    for first in range(0, len(drawn), size):
        part = drawn[first : first + size]
        index = torch.from_numpy(part).to(logits.device, non_blocking=True)
        ids[index] = _draw(logits[index], peaks[index], rows, slots[part], positions[index])
    return Sampled(ids=ids, ok=ok, logits=logits)


def _draw(logits: Tensor, peaks: Tensor, rows: SamplingRows, slots: SlotArray, positions: Tensor) -> Tensor:
    """Draw an id for each row; peaks: each row's largest logit, [S]."""
    reached = kept_weights(logits, peaks, rows, slots).cumsum_(1)
    seeds, choices = rows.wholes[torch.from_numpy(slots).to(logits.device, non_blocking=True)][
        :, SEED : CHOICE + 1
    ].unbind(1)
    target = uniform(seeds, choices, positions)[:, None] * reached[:, -1:]
    # A void row (NaN) may find no place: its id only has to be inside the vocabulary.
    return torch.searchsorted(reached, target, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)


def kept_weights(logits: Tensor, peaks: Tensor, rows: SamplingRows, slots: SlotArray) -> Tensor:
    """Return what a token is drawn by, float64 [S, V]: exp(logit / temperature), 0 for those that the filters drop."""
    index = torch.from_numpy(slots).to(logits.device, non_blocking=True)
    temperature, top_p, min_p = rows.reals[index].unbind(1)
    top_k = rows.wholes[index, TOP_K]
    scale = temperature.clamp(min=GREEDY_BELOW)[:, None]
    weights = logits.double().sub_(peaks[:, None]).div_(scale).exp_()
    if rows.has_min_p[slots].any():
        weights.masked_fill_(weights < min_p[:, None], 0.0)
    filtered = np.flatnonzero(rows.filtered[slots])
    if len(filtered) == len(slots):
        weights *= keep_top(weights, top_k, top_p)
    elif len(filtered) > 0:
        some = torch.from_numpy(filtered).to(logits.device, non_blocking=True)
        weights[some] *= keep_top(weights[some], top_k[some], top_p[some])
    return weights
