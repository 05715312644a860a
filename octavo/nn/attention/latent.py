"""Latent attention of a layer (MLA; DeepSeek-V2, 2024): keys and values of all heads from one small vector a token.

Shapes: T tokens, H query heads, L latent features, R features of the rotated key, C of a head's other key part, V of its
values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding
from octavo.nn.attention.select import BLOCKS
from octavo.nn.context import ForwardContext
from octavo.nn.linear import ColumnLinear
from octavo.nn.rope import Rope
from octavo.ops.paged_attention import Scoring
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentDims:
    """Sizes: heads, and features of the latent, of a key's plain and rotated parts, and of values."""

    heads: int
    latent: int
    plain: int
    rotated: int
    value: int


class LatentAttention(nn.Module):
    """Causal attention over latents. A page keeps each token's latent and rotated key once, whatever the number of heads.

    The projection `expand` (latent to every head's plain key and value) is never applied to what is kept: its key half goes
    into the queries, its value half into the outputs.
    """

    def __init__(self, layer: int, dims: LatentDims, rope: Rope, *, scale: float) -> None:
        super().__init__()
        self.layer = layer
        self.dims = dims
        self.rope = rope
        self.scoring = Scoring(scale=scale)
        self.expand = ColumnLinear(dims.latent, dims.heads * (dims.plain + dims.value), unit=dims.plain + dims.value)

    def bind(self, binding: Binding) -> None:
        """Take the kernels."""
        self._write, self._attend = binding.kernels.plane_write, binding.kernels.latent_attention
        self.dtype: torch.dtype = getattr(torch, binding.dtype)
        self._device = binding.device

    def finalize(self) -> None:
        """Take the matrix of `expand` apart, in whatever format it is stored."""
        self.expand.finalize()
        unit = torch.eye(self.dims.latent, dtype=self.dtype, device=self._device)
        per_head = self.expand(unit).unflatten(-1, (-1, self.dims.plain + self.dims.value))
        self.keys_LHC, self.values_LHV = per_head.split([self.dims.plain, self.dims.value], -1)

    def kept(self) -> KeptLayer:
        """Return what the layer keeps between steps: the same on every rank."""
        dim, name = self.dims.latent + self.dims.rotated, str(self.dtype).removeprefix("torch.")
        plane = Plane(name="latent", heads=1, dim=dim, dtype=name, itemsize=self.dtype.itemsize)
        return KeptLayer(layer=self.layer, kept=KeptTokens(planes=(plane,)), blocks=BLOCKS)

    def forward(self, q: Tensor, latent: Tensor, key: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, H * V] of q [T, H, C + R], latent [T, L] and the rotated part of the key [T, R]."""
        pages = ctx.layers[self.layer]
        group, column = ctx.tokens(pages), pages.column
        plain, rotated = q.split([self.dims.plain, self.dims.rotated], -1)
        key = key.unsqueeze(1)
        self.rope(rotated, key, ctx.positions)
        token = torch.cat((latent.unsqueeze(1), key), -1)
        self._write(token, pages.planes["latent"], group.write_pages[:, column], group.write_offsets)
        absorbed = torch.einsum("thc,lhc->thl", plain, self.keys_LHC)
        table = group.table[:, column :: group.pages_per_block]
        mixed = self._attend(
            torch.cat((absorbed, rotated), -1),
            pages.planes["latent"],
            self.dims.latent,
            table,
            ctx.query_starts,
            ctx.lengths,
            self.scoring,
        )
        return torch.einsum("thl,lhv->thv", mixed, self.values_LHV).flatten(1)
