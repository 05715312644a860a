"""Latent attention in Triton: the kernel of paged attention, with one key head whose values are the front of its keys."""

from __future__ import annotations

from torch import Tensor

from octavo.ops.paged_attention import Scoring
from octavo.ops.paged_attention.triton import attend


def latent_attention(
    q: Tensor, latents: Tensor, num_latent: int, table: Tensor, query_starts: Tensor, lengths: Tensor, scoring: Scoring
) -> Tensor:
    """See `LatentAttention`."""
    return attend(q, latents, latents[..., :num_latent], table, query_starts, lengths, scoring)
