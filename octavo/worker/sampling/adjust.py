"""What a request changes of the model's logits before a token is chosen, for all rows at once.

In this order: allowed_token_ids, bad_words, the mask of min_tokens, logit_bias, penalties, logits processors. What has come
before is read from the slots' history, so it is right after a cached prefix, a fork or a preemption, and with tokens that
the host has not seen.

Shapes: S sampling rows, P rows with penalties, V vocabulary, L tokens of the longest history.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo.worker.sampling.rows import MIN_TOKENS, NUM_PROMPT, SamplingRows, SlotArray

# Rows with penalties are counted in slices of at most this many numbers.
_SLICE = 2**22
_NEVER = float("-inf")


def adjust(logits: Tensor, rows: SamplingRows, slots: SlotArray, positions: Tensor) -> Tensor:
    """Return the logits from which tokens are chosen: float32 [S, V], the same tensor if no row asks for a change.

    slots: int64 [S]. positions: int64 [S], of the tokens to be chosen.
    """
    if not rows.adjusted[slots].any():
        return logits
    logits = logits.clone()
    index = torch.from_numpy(slots).to(logits.device)
    _allow(logits, rows, slots)
    _forbid_words(logits, rows, slots, index, positions)
    _hold_back_stops(logits, rows, slots, index, positions)
    bias = rows.bias.join(slots)
    if bias is not None:
        logits.index_put_((bias.rows, bias.ids), bias.numbers[:, 0].float(), accumulate=True)
    penalized = np.flatnonzero(rows.penalized[slots])
    size = max(1, _SLICE // max(logits.shape[1], rows.history.shape[1]))
    for first in range(0, len(penalized), size):
        _penalize(logits, penalized[first : first + size], rows, slots, positions)
    for processor in rows.processors:
        logits = processor.apply(logits, slots, index, positions)
    return logits


def _allow(logits: Tensor, rows: SamplingRows, slots: SlotArray) -> None:
    allowed = rows.allowed.join(slots)
    if allowed is not None:
        kept = logits[allowed.rows, allowed.ids]
        logits[allowed.owners] = _NEVER
        logits[allowed.rows, allowed.ids] = kept


def _forbid_words(logits: Tensor, rows: SamplingRows, slots: SlotArray, index: Tensor, positions: Tensor) -> None:
    """Forbid the last token of a word whose other tokens are the last of the text."""
    words = rows.words.join(slots)
    if words is None:
        return
    before = words.numbers[:, :-1]
    places = positions[words.rows, None] + torch.arange(-before.shape[1], 0, device=logits.device)
    found = rows.history[index[words.rows, None], places.clamp(min=0)]
    complete = ((before < 0) | ((found == before) & (places >= 0))).all(1)
    _mask(logits, words.rows, words.ids, complete)


def _hold_back_stops(logits: Tensor, rows: SamplingRows, slots: SlotArray, index: Tensor, positions: Tensor) -> None:
    stops = rows.stops.join(slots)
    if stops is not None:
        wholes = rows.wholes[index]
        early = positions - wholes[:, NUM_PROMPT] < wholes[:, MIN_TOKENS]
        _mask(logits, stops.rows, stops.ids, early[stops.rows])


def _mask(logits: Tensor, rows: Tensor, ids: Tensor, where: Tensor) -> None:
    # Added, not written: one place may be named by several entries of which some do not count.
    logits.index_put_((rows, ids), torch.where(where, _NEVER, 0.0), accumulate=True)


def _penalize(logits: Tensor, chosen: SlotArray, rows: SamplingRows, slots: SlotArray, positions: Tensor) -> None:
    """Apply the penalties of the rows `chosen`, int64 [P]."""
    device = logits.device
    index = torch.from_numpy(chosen).to(device)
    slot = torch.from_numpy(slots[chosen]).to(device)
    longest = int(rows.bounds[slots[chosen]].max())
    places = torch.arange(longest, device=device)
    past = places < positions[index, None]
    tokens = rows.history[slot, :longest].long().masked_fill_(~past, 0)
    made = past & (places >= rows.wholes[slot, NUM_PROMPT, None])
    presence, frequency, repetition = rows.penalties[slot].split(1, dim=1)
    part = logits[index]
    seen = _count(tokens, past, part) > 0
    part = torch.where(seen, torch.where(part > 0, part / repetition, part * repetition), part)
    counts = _count(tokens, made, part)
    logits[index] = part - frequency * counts - presence * (counts > 0)


def _count(tokens: Tensor, counted: Tensor, like: Tensor) -> Tensor:
    """Return how often each token comes among those that count, float32 [P, V]. tokens, counted: [P, L]."""
    return torch.zeros_like(like).scatter_add_(1, tokens, counted.to(like.dtype))
