"""The likeliest token in plain torch."""

from __future__ import annotations

from torch import Tensor


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `Likeliest`."""
    peaks, ids = logits.max(dim=1)
    return ids, peaks.isfinite()
