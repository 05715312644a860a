"""Attention of a mixed batch over latents: one vector a token serves every head as key, and its front as value.

Multi-head latent attention (DeepSeek-V2, 2024) with the up-projections absorbed into queries and outputs.

Shapes: T tokens in the step, R rows (sequences), H query heads, L latent features, D = L + features of the rotated key,
P pages in the pool, B tokens a block, C columns of the table.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.paged_attention import Scoring
from octavo.ops.usual import usual_op


class LatentAttention(Protocol):
    """Causal attention over pages of latents."""

    def __call__(
        self,
        q: Tensor,
        latents: Tensor,
        num_latent: int,
        table: Tensor,
        query_starts: Tensor,
        lengths: Tensor,
        scoring: Scoring,
    ) -> Tensor:
        """Return [T, H, L] in q's dtype: each head's weighted sum of latents.

        q: [T, H, D], latent part first. latents: strided view [P, 1, B, D], written already. num_latent: L. The rest is as
        in `PagedAttention`.
        """
        ...


LATENT_ATTENTION = usual_op("latent_attention", recordable=False)
