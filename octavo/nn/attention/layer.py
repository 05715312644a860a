"""Attention of a layer: rotate, write into pages, attend.

Shapes: T tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.nn.assembly import Binding
from octavo.nn.attention.backend import AttentionBackend
from octavo.nn.attention.capabilities import AttentionNeeds
from octavo.nn.attention.select import select
from octavo.nn.context import ForwardContext
from octavo.nn.heads import Heads
from octavo.nn.norm import RMSNorm
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.rope import Rope
from octavo.protocol.kept import KeptLayer, KeptTokens


class Attention(nn.Module):
    """Causal attention over everything that layer `layer` of a sequence has kept, or over its last `window` tokens.

    scale: of scores, 1 / sqrt(D) if not given. softcap: see `Scoring`. q_norm, k_norm: over each head, before the rotation.
    """

    def __init__(
        self,
        layer: int,
        heads: Heads,
        rope: Rope | None,
        *,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.rope = rope
        self.window = window
        self.scale = heads.dim**-0.5 if scale is None else scale
        self.softcap = softcap
        self.q_norm, self.k_norm = (None, None) if norms is None else norms

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle how many heads are here."""
        self.local = self.heads.local(mesh)

    def bind(self, binding: Binding) -> None:
        """Choose the backend."""
        needs = AttentionNeeds(dtype=binding.dtype, head_dim=self.heads.dim, window=self.window, softcap=self.softcap)
        selection = select(needs, binding.facts, binding.attention)
        binding.note(selection.reason)
        module, _, name = selection.backend.path.partition(":")
        self.blocks = selection.backend.blocks
        self.backend: AttentionBackend = getattr(importlib.import_module(module), name)(
            needs, self.scale, binding.kernels
        )

    def kept(self) -> KeptLayer:
        """Return what the layer keeps between steps."""
        kept = KeptTokens(planes=self.backend.planes(self.local), window=self.window)
        return KeptLayer(layer=self.layer, kept=kept, blocks=self.blocks)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, H * D] of q [T, H, D], k [T, K, D] and v [T, K, D]; q and k may be overwritten."""
        pages = ctx.layers[self.layer]
        group, column = ctx.groups[pages.group], pages.column
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            self.rope(q, k, ctx.positions)
        self.backend.write(k, v, pages.planes, group.write_pages[:, column], group.write_offsets)
        table = group.table[:, column :: group.pages_per_block]
        return self.backend.attend(q, pages.planes, table, ctx.query_starts, ctx.lengths).flatten(1)


def window_of(facts: ModelFacts, layer: int, slides: bool) -> int | None:
    """Return how many tokens a layer sees, None for all. slides: by the architecture's rule, where the config lists no kinds."""
    if facts.layer_kinds:
        slides = facts.layer_kinds[layer] == "sliding"
    return facts.sliding_window if slides else None
