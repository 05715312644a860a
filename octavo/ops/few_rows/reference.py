"""A decoder layer out of the references of its parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.few_rows import LayerWeights
from octavo.ops.gated_activation.reference import gated_activation
from octavo.ops.paged_attention import Scoring
from octavo.ops.paged_attention.reference import paged_attention
from octavo.ops.rms_norm.reference import rms_norm
from octavo.ops.rope_write import Rotation
from octavo.ops.rope_write.reference import rope_write


def few_rows(
    residual: Tensor,
    layer: LayerWeights,
    rotation: Rotation,
    planes: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
) -> None:
    """See `FewRows`."""
    (num_rows, _), block, size = residual.shape, planes[0].shape[2], planes[0].shape[3]
    qkv = F.linear(rms_norm(residual, layer.attention_norm, layer.eps), layer.qkv, layer.qkv_bias)
    heads = qkv.unflatten(-1, (-1, size)).split([layer.num_heads, layer.num_kv_heads, layer.num_kv_heads], 1)
    last = lengths.long() - 1
    pages = table.gather(1, (last // block)[:, None])[:, 0].long()
    q = rope_write(*heads, layer.head_norms, rotation, planes, pages, last % block)
    starts = torch.arange(num_rows + 1, dtype=torch.int32, device=residual.device)
    attended = paged_attention(q, *planes, table, starts, lengths, Scoring(scale=layer.scale))
    residual += F.linear(attended.flatten(1), layer.out, layer.out_bias)
    gate, up = F.linear(rms_norm(residual, layer.mlp_norm, layer.eps), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
    residual += F.linear(gated_activation(gate, up, layer.activation), layer.down, layer.down_bias)
