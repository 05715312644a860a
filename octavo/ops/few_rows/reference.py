"""A decoder layer out of the references of its parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.few_rows import LayerWeights, Ranks, RowPages
from octavo.ops.gated_activation.reference import gated_activation
from octavo.ops.paged_attention import Scoring
from octavo.ops.paged_attention.reference import paged_attention
from octavo.ops.rms_norm.reference import rms_norm
from octavo.ops.rope_write.reference import rope_write


def few_rows(residual: Tensor, layer: LayerWeights, pages: RowPages, ranks: Ranks | None = None) -> None:
    """See `FewRows`."""
    _, num_kv_heads, block, size = pages.keys.shape
    planes, last = (pages.keys, pages.values), pages.lengths.long() - 1
    qkv = F.linear(rms_norm(residual, layer.attention_norm, layer.eps), *layer.qkv).unflatten(-1, (-1, size))
    q, k, v = qkv.split([qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], 1)
    own = pages.table.gather(1, (last // block)[:, None])[:, 0].long()
    q = rope_write(q, k, v, layer.head_norms, pages.rotation, planes, own, last % block)
    starts = torch.arange(len(residual) + 1, dtype=torch.int32, device=residual.device)
    attended = paged_attention(q, *planes, pages.table, starts, pages.lengths, Scoring(scale=layer.scale))
    part = residual if ranks is None else ranks.part_of(residual)
    part += F.linear(attended.flatten(1), *layer.out)
    if ranks is not None:
        ranks.sum(part, residual)
    gate, up = F.linear(rms_norm(residual, layer.mlp_norm, layer.eps), *layer.gate_up).chunk(2, -1)
    part += F.linear(gated_activation(gate, up, layer.activation), *layer.down)
    if ranks is not None:
        ranks.sum(part, residual)
