"""Causal convolutions in plain torch."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.states import StatePages, read_states, write_states


def causal_conv(x: Tensor, weight: Tensor, inputs: Tensor, pages: StatePages, query_starts: Tensor) -> Tensor:
    """See `CausalConv`."""
    num_channels, num_kept = weight.shape[0], weight.shape[1] - 1
    kept = read_states(inputs, pages)
    shape = kept.shape
    kept_RCK, out, starts = kept.view(-1, num_channels, num_kept), torch.zeros_like(x), query_starts.tolist()
    for row, (first, last) in enumerate(pairwise(starts)):
        seen = torch.cat((kept_RCK[row], x[first:last].T), -1)
        filtered = F.conv1d(seen[None].float(), weight[:, None].float(), groups=num_channels)[0]
        out[first:last] = F.silu(filtered).T
        kept_RCK[row] = seen[:, seen.shape[1] - num_kept :]
    write_states(kept_RCK.view(shape), inputs, pages)
    return out
