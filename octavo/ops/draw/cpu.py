"""Drawing by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import NativeOp, packed
from octavo.protocol.sampling import GREEDY_BELOW

_DRAW = NativeOp("draw", "p pp pp pp qqqq d")


def draw(logits: Tensor, slots: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor) -> tuple[Tensor, Tensor]:
    """See `Draw`."""
    logits, slots, positions = packed(logits), packed(slots), packed(positions)
    assert logits.dtype == torch.float32 and reals.is_contiguous() and reals.shape[1] == 3 and wholes.stride(1) == 1
    ids, ok = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.bool)
    strides = logits.stride(0), wholes.stride(0)
    _DRAW(logits, slots, positions, reals, wholes, ids, ok, *logits.shape, *strides, GREEDY_BELOW)
    return ids, ok
