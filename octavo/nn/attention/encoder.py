"""Attention of encoders: in both directions, over what the step itself brings. It keeps nothing.

Shapes: T tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from torch import Tensor, nn

from octavo.nn.assembly import Binding
from octavo.nn.context import ForwardContext
from octavo.nn.heads import Heads


class EncoderAttention(nn.Module):
    """Every token sees all tokens of its row; so the row has to come in one step."""

    def __init__(self, heads: Heads, *, scale: float | None = None) -> None:
        super().__init__()
        self.scale = heads.dim**-0.5 if scale is None else scale

    def bind(self, binding: Binding) -> None:
        """Take the kernel."""
        self._attend = binding.kernels.row_attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, H * D] of q [T, H, D], k [T, K, D] and v [T, K, D]."""
        return self._attend(q, k, v, ctx.query_starts, self.scale).flatten(1)
