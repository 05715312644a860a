"""Tokens chosen and added in plain torch. Shapes: S rows, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.draw import CHOICE, MIN_P, SEED, TEMPERATURE, TOP_K, TOP_P
from octavo.ops.draw.filters import keep_sorted, keep_top
from octavo.ops.draw.uniform import uniform
from octavo.protocol.sampling import GREEDY_BELOW

# Rows are drawn in slices of at most this many float64 weights: 8 MiB, which also keeps them in a host's cache.
_SLICE = 2**20


def draw(logits: Tensor, slots: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor) -> tuple[Tensor, Tensor]:
    """See `Draw`."""
    peaks, ids = logits.max(dim=1)
    reals, wholes = reals[slots], wholes[slots]
    drawn = torch.nonzero((reals[:, TEMPERATURE] >= GREEDY_BELOW) & (wholes[:, TOP_K] != 1))[:, 0]
    for part in drawn.split(max(1, _SLICE // logits.shape[1])):
        reached = kept_weights(logits[part], reals[part], wholes[part]).cumsum_(1)
        numbers = uniform(wholes[part, SEED], wholes[part, CHOICE], positions[part])
        # A void row (NaN) may find no place: its id only has to be inside the vocabulary.
        found = torch.searchsorted(reached, numbers[:, None] * reached[:, -1:], right=True)
        ids[part] = found[:, 0].clamp_(max=logits.shape[1] - 1)
    return ids, peaks.isfinite()


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `Likeliest`."""
    peaks, ids = logits.max(dim=1)
    return ids, peaks.isfinite()


def append(history: Tensor, lengths: Tensor, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor) -> Tensor:
    """See `Append`."""
    num_slots, longest = history.shape
    fits = ok & (positions < longest) & (slots != num_slots - 1)
    places = positions.clamp(max=longest - 1)
    history[slots, places] = torch.where(fits, ids.to(torch.int32), history[slots, places])
    lengths[slots] = torch.where(fits, positions + 1, lengths[slots])
    return torch.stack((ids, ok))


def kept_weights(logits: Tensor, reals: Tensor, wholes: Tensor, *, waiting: bool = True) -> Tensor:
    """Return what a token is drawn by, float64 [S, V]: exp(logit / temperature), 0 for those that the filters drop.

    reals, wholes: of each row. waiting: values may be read on the host, which is quicker on a host and waits for a device.
    """
    temperature, top_p, min_p, top_k = reals[:, TEMPERATURE], reals[:, TOP_P], reals[:, MIN_P], wholes[:, TOP_K]
    weights = (
        logits.double().sub_(logits.amax(1, keepdim=True)).div_(temperature.clamp(min=GREEDY_BELOW)[:, None]).exp_()
    )
    if not waiting:
        weights.masked_fill_(weights < min_p[:, None], 0.0)
        return weights.mul_(keep_sorted(weights, top_k, top_p))
    if bool((min_p > 0.0).any()):
        weights.masked_fill_(weights < min_p[:, None], 0.0)
    filtered = torch.nonzero((top_k > 0) | (top_p < 1.0))[:, 0]
    if len(filtered) == len(logits):
        weights *= keep_top(weights, top_k, top_p)
    elif len(filtered) > 0:
        weights[filtered] *= keep_top(weights[filtered], top_k[filtered], top_p[filtered])
    return weights
