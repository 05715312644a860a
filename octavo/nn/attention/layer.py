"""Attention of a layer: rotate, write into pages, attend.

Shapes: T tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from octavo.base.facts import ModelFacts
from octavo.base.registry import import_path
from octavo.nn.assembly import Binding, Destination, parameter
from octavo.nn.attention.alibi import Alibi
from octavo.nn.attention.paged import PagedBackend
from octavo.nn.attention.select import AttentionNeeds, select
from octavo.nn.context import ForwardContext
from octavo.nn.heads import Heads
from octavo.nn.norm import RMSNorm
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import share
from octavo.nn.rope import Rope
from octavo.ops.paged_attention import Scoring
from octavo.ops.rope_write import HeadNorms
from octavo.protocol.kept import KeptLayer, KeptTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Layer `layer` reads the keys and values that layer `owner` keeps, and has none of its own."""

    layer: int
    owner: int


class Attention(nn.Module):
    """Causal attention over everything that layer `layer` of a sequence has kept, or over its last `window` tokens.

    scale: of scores, 1 / sqrt(D) if not given. softcap: see `Scoring`. sinks: whether it has them, as a weight. norms: of q and
    k, over each head, before the rotation.
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        layer: int | Reader,
        heads: Heads,
        positions: Rope | Alibi | None,
        *,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        norms: tuple[nn.Module, nn.Module | None] | None = None,
    ) -> None:
        super().__init__()
        self.layer, self.shares = (layer.layer, layer.owner) if isinstance(layer, Reader) else (layer, None)
        self.heads = heads
        self.alibi = positions if isinstance(positions, Alibi) else None
        self.rope = None if isinstance(positions, Alibi) else positions
        self.window = window
        self.scale = heads.dim**-0.5 if scale is None else scale
        self.softcap = softcap
        self.has_sinks = sinks
        self.q_norm, self.k_norm = (None, None) if norms is None else norms

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle which heads are here."""
        self.local = self.heads.local(mesh)
        self.held = share(self.heads.query, mesh.tensor)
        self.sinks = parameter((self.local.query,), dtype) if self.has_sinks else None

    def bind(self, binding: Binding) -> None:
        """Choose the backend."""
        needs = AttentionNeeds(
            dtype=binding.dtype,
            head_dim=self.heads.dim,
            window=self.window,
            softcap=self.softcap,
            alibi=self.alibi is not None,
            sinks=self.has_sinks,
        )
        selection = select(needs, binding.facts, binding.attention)
        binding.note(selection.reason)
        self.blocks = selection.backend.blocks
        self.backend: PagedBackend = import_path(selection.backend.path)(needs, binding.kernels)
        self.device = binding.device

    def destinations(self) -> Mapping[str, Destination]:
        """Return `sinks`, if there are any."""
        if self.sinks is None:
            return {}
        cut = (slice(self.held.start, self.held.stop),)
        return {"sinks": Destination(tensor=self.sinks, shape=(self.heads.query,), cut=cut)}

    def finalize(self) -> None:
        """Settle how scores are made and which norms a kernel can take, now that weights have their memory."""
        self.head_norms = None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            assert self.q_norm.eps == self.k_norm.eps
            self.head_norms = HeadNorms(q=self.q_norm.weight, k=self.k_norm.weight, eps=self.q_norm.eps)
        slopes = None
        if self.alibi is not None:
            held = self.alibi.slopes[self.held.start : self.held.stop]
            slopes = torch.tensor(held, dtype=torch.float32, device=self.device)
        self.scoring = Scoring(
            scale=self.scale, window=self.window, softcap=self.softcap, slopes=slopes, sinks=self.sinks
        )

    def kept(self) -> KeptLayer:
        """Return what the layer keeps between steps."""
        kept = KeptTokens(planes=self.backend.planes(self.local), window=self.window)
        return KeptLayer(layer=self.layer, kept=kept, blocks=self.blocks, shares=self.shares)

    def forward(self, q: Tensor, k: Tensor | None, v: Tensor | None, ctx: ForwardContext) -> Tensor:
        """Return [T, H * D] of q [T, H, D], k [T, K, D] and v [T, K, D], None if it shares; q and k may be overwritten."""
        pages = ctx.layers[self.layer]
        group = ctx.tokens(pages)
        if k is not None and v is not None:
            q = self._keep(q, k, v, ctx)
        else:
            q = q if self.q_norm is None else self.q_norm(q)
            if self.rope is not None:
                self.rope(q, q[:, :0], ctx.positions)
        columns, span = slice(pages.column, None, group.pages_per_block), group.span
        span = None if span is None else replace(span, table=span.table[columns])
        table = group.table[:, columns]
        attended = self.backend.attend(q, pages.planes, table, ctx.query_starts, ctx.lengths, self.scoring, span)
        return attended.flatten(1)

    def _keep(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        """Normalize and rotate q and k, put k and v into their pages and return q."""
        pages = ctx.layers[self.layer]
        group = ctx.tokens(pages)
        places = pages.planes, group.write_pages[:, pages.column], group.write_offsets
        norms = None if self.rope is None else self.head_norms
        if norms is None:
            q, k = (x if norm is None else norm(x) for x, norm in ((q, self.q_norm), (k, self.k_norm)))
        if self.rope is None:
            self.backend.write(k, v, *places)
            return q
        return self.backend.rotate_and_write(q, k, v, norms, self.rope.rotation(ctx.positions), *places)


def window_of(facts: ModelFacts, layer: int, slides: bool) -> int | None:
    """Return how many tokens a layer sees, None for all. slides: by the architecture's rule, where the config lists no kinds."""
    if facts.layer_kinds:
        slides = facts.layer_kinds[layer] == "sliding"
    return facts.sliding_window if slides else None
