"""Layers with a state of fixed size instead of keys and values: the gated delta rule (Yang et al. 2024).

Shapes: T tokens, K key heads, H value heads, D key features, V value features, C channels of the convolution, W its taps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Destination, parameter
from octavo.nn.context import ForwardContext
from octavo.nn.linear import Linear, Part
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import share
from octavo.nn.vector import Vector
from octavo.protocol.kept import KeptLayer, KeptState, Plane


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaDims:
    """Sizes: key and value heads, features of each, and the taps of the convolution before the rule."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the convolution sees: queries, keys and values; a rank's share is whole key heads with their values."""
        keys, each = self.key_heads * self.key_dim, self.value_heads // self.key_heads * self.value_dim
        return (
            Part(name="q", num_outs=keys, unit=self.key_dim),
            Part(name="k", num_outs=keys, unit=self.key_dim),
            Part(name="v", num_outs=self.key_heads * each, unit=each),
        )

    def local(self, mesh: Mesh) -> DeltaDims:
        """Return the sizes that this rank computes."""
        key_heads = len(share(self.key_heads, mesh.tensor))
        value_heads = self.value_heads // self.key_heads * key_heads
        return replace(self, key_heads=key_heads, value_heads=value_heads)


class DeltaProjection(Linear):
    """Everything that the rule takes, from one product. Parts: q, k, v, z (the output's gate), b and a (beta and decay)."""

    def __init__(self, num_ins: int, dims: DeltaDims) -> None:
        each = dims.value_heads // dims.key_heads
        gate = Part(name="z", num_outs=dims.value_heads * dims.value_dim, unit=each * dims.value_dim)
        scalars = (Part(name=name, num_outs=dims.value_heads, unit=each) for name in ("b", "a"))
        super().__init__(num_ins, (*dims.parts, gate, *scalars), "column", bias=False)
        self.value_dim = dims.value_dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the convolution's channels [T, C], the gate [T, H, V], and b and a [T, H], of x [T, in]."""
        q, k, v, z, b, a = self.outputs(x)
        return torch.cat((q, k, v), -1), z.unflatten(-1, (-1, self.value_dim)), b, a


class ConvFilter(nn.Module):
    """The taps of a convolution over the channels of some parts, one after another in one tensor of the checkpoint."""

    weight: nn.Parameter

    def __init__(self, parts: tuple[Part, ...], taps: int) -> None:
        super().__init__()
        self.parts = parts
        self.taps = taps

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the taps [C, 1, W] of the channels that are here."""
        self.held = {part.name: share(part.num_outs, mesh.tensor, part.unit) for part in self.parts}
        self.weight = parameter((sum(len(held) for held in self.held.values()), 1, self.taps), dtype)

    def destinations(self) -> Mapping[str, Destination]:
        """Return each part's share of the tensor: `q.weight`, `k.weight`…"""
        found, first = dict[str, Destination](), 0
        for part in self.parts:
            held = self.held[part.name]
            local = self.weight[first : first + len(held)]
            cut = (slice(held.start, held.stop),)
            found[f"{part.name}.weight"] = Destination(tensor=local, shape=(part.num_outs, 1, self.taps), cut=cut)
            first += len(held)
        return found


class GatedDeltaRule(nn.Module):
    """A convolution over queries, keys and values, then the rule; the state of both is what layer `layer` keeps."""

    def __init__(self, layer: int, dims: DeltaDims) -> None:
        super().__init__()
        self.layer = layer
        self.dims = dims
        self.conv = ConvFilter(dims.parts, dims.taps)
        self.rate = Vector(dims.value_heads, "A_log", spread=True)
        self.bias = Vector(dims.value_heads, "dt_bias", spread=True)

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle which heads are here."""
        self.local = self.dims.local(mesh)

    def bind(self, binding: Binding) -> None:
        """Take the kernels."""
        self._convolve, self._fold = binding.kernels.causal_conv, binding.kernels.gated_delta_rule
        self._dtype = binding.dtype

    def kept(self) -> KeptLayer:
        """Return what the layer keeps: the rule's state in float32, and the convolution's last inputs."""
        dims, itemsize = self.local, getattr(torch, self._dtype).itemsize
        each = 2 * dims.key_dim + dims.value_heads // dims.key_heads * dims.value_dim
        size = dims.key_dim * dims.value_dim
        planes = (
            Plane(name="state", heads=dims.value_heads, dim=size, dtype="float32", itemsize=4),
            Plane(
                name="inputs", heads=dims.key_heads, dim=each * (dims.taps - 1), dtype=self._dtype, itemsize=itemsize
            ),
        )
        return KeptLayer(layer=self.layer, kept=KeptState(planes=planes))

    def forward(self, channels: Tensor, b: Tensor, a: Tensor, ctx: ForwardContext) -> Tensor:
        """Return [T, H, V] of channels [T, C] (q, k and v), b and a [T, H]."""
        layer, dims = ctx.layers[self.layer], self.local
        group = ctx.states(layer)
        columns = slice(layer.column, layer.column + layer.parts)
        pages = replace(group, before=group.before[:, columns], after=group.after[:, columns])
        weight = self.conv.weight.squeeze(1)
        mixed = self._convolve(channels, weight, layer.planes["inputs"], pages, ctx.query_starts)
        keys = dims.key_heads * dims.key_dim
        q, k, v = mixed.split([keys, keys, dims.value_heads * dims.value_dim], -1)
        decay = -self.rate().float().exp() * F.softplus(a.float() + self.bias())
        return self._fold(
            q.unflatten(-1, (-1, dims.key_dim)),
            k.unflatten(-1, (-1, dims.key_dim)),
            v.unflatten(-1, (-1, dims.value_dim)),
            decay,
            b.float().sigmoid(),
            layer.planes["state"],
            pages,
            ctx.query_starts,
        )
