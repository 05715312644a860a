"""Adding tokens by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.ops.native import NativeOp, packed

_APPEND = NativeOp("append", "pppp ppp qqq")


def append(history: Tensor, lengths: Tensor, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor) -> Tensor:
    """See `Append`."""
    slots, positions, ids, ok = packed(slots), packed(positions), packed(ids), packed(ok)
    assert history.is_contiguous() and lengths.is_contiguous()
    chosen = torch.empty((2, len(ids)), dtype=torch.int64)
    _APPEND(history, lengths, slots, positions, ids, ok, chosen, len(ids), *history.shape)
    return chosen
