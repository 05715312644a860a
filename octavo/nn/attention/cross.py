"""Cross attention of a decoder: over what its encoder made of the request's input, which is kept in pages.

Shapes: T tokens, E tokens of the encoder, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.base.errors import ConfigError
from octavo.nn.assembly import Binding
from octavo.nn.attention.select import BLOCKS
from octavo.nn.context import ForwardContext
from octavo.nn.heads import Heads
from octavo.nn.parallel.mesh import Mesh
from octavo.protocol.kept import KeptLayer, KeptTokens, Plane


class CrossAttention(nn.Module):
    """Attention over the encoder's output. Keys and values are written once, when the sequence is admitted."""

    def __init__(self, layer: int, heads: Heads, *, scale: float | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.scale = heads.dim**-0.5 if scale is None else scale

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle which heads are here. Raises ConfigError for several stages: each would need the encoder's output."""
        if mesh.pipeline.size > 1:
            raise ConfigError(
                "a model with cross attention cannot be cut in stages yet", field="pipeline_parallel_size"
            )
        self.local, self.dtype = self.heads.local(mesh), dtype

    def bind(self, binding: Binding) -> None:
        """Take the kernels."""
        self._write, self._attend = binding.kernels.page_write, binding.kernels.cross_attention

    def kept(self) -> KeptLayer:
        """Return what the layer keeps: keys and values of the encoder's tokens."""
        name, size = str(self.dtype).removeprefix("torch."), self.dtype.itemsize
        planes = tuple(
            Plane(name=plane, heads=self.local.kv, dim=self.local.dim, dtype=name, itemsize=size)
            for plane in ("key", "value")
        )
        return KeptLayer(layer=self.layer, kept=KeptTokens(planes=planes, encoder=True), blocks=BLOCKS)

    def write(self, k: Tensor, v: Tensor, ctx: ForwardContext) -> None:
        """Keep k and v [E, K, D] of the encoder's tokens; `ctx` is that of the encoder's pass."""
        pages = ctx.layers[self.layer]
        group = ctx.tokens(pages)
        places = group.write_pages[:, pages.column], group.write_offsets
        self._write(k, v, pages.planes["key"], pages.planes["value"], *places)

    def forward(self, q: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, H * D] of q [T, H, D]."""
        pages = ctx.layers[self.layer]
        group = ctx.tokens(pages)
        assert ctx.encoder_lengths is not None
        planes, table = pages.planes, group.table[:, pages.column :: group.pages_per_block]
        found = self._attend(
            q, planes["key"], planes["value"], table, ctx.query_starts, ctx.encoder_lengths, self.scale
        )
        return found.flatten(1)
