"""Tokens chosen and added by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import NativeOp, packed
from octavo.protocol.sampling import GREEDY_BELOW

_DRAW = NativeOp("draw", "p pp pp pp qqqq d")
_LIKELIEST = NativeOp("likeliest", "ppp qqq")
_APPEND = NativeOp("append", "pppp ppp qqq")


def draw(logits: Tensor, slots: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor) -> tuple[Tensor, Tensor]:
    """See `Draw`."""
    logits, slots, positions = packed(logits), packed(slots), packed(positions)
    assert logits.dtype == torch.float32 and reals.is_contiguous() and reals.shape[1] == 3 and wholes.stride(1) == 1
    ids, ok = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.bool)
    strides = logits.stride(0), wholes.stride(0)
    _DRAW(logits, slots, positions, reals, wholes, ids, ok, *logits.shape, *strides, GREEDY_BELOW)
    return ids, ok


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `Likeliest`."""
    logits = packed(logits)
    assert logits.dtype == torch.float32
    ids, ok = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.bool)
    _LIKELIEST(logits, ids, ok, *logits.shape, logits.stride(0))
    return ids, ok


def append(history: Tensor, lengths: Tensor, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor) -> Tensor:
    """See `Append`."""
    slots, positions, ids, ok = packed(slots), packed(positions), packed(ids), packed(ok)
    assert history.is_contiguous() and lengths.is_contiguous()
    chosen = torch.empty((2, len(ids)), dtype=torch.int64)
    _APPEND(history, lengths, slots, positions, ids, ok, chosen, len(ids), *history.shape)
    return chosen
