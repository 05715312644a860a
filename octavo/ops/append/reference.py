"""Adding tokens in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def append(history: Tensor, lengths: Tensor, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor) -> Tensor:
    """See `Append`."""
    num_slots, longest = history.shape
    fits = ok & (positions < longest) & (slots != num_slots - 1)
    places = positions.clamp(max=longest - 1)
    history[slots, places] = torch.where(fits, ids.to(torch.int32), history[slots, places])
    lengths[slots] = torch.where(fits, positions + 1, lengths[slots])
    return torch.stack((ids, ok))
