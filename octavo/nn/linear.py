"""Projections. Each declares logical shapes and its role; a format stores its weights, the mesh cuts them.

Shapes: T tokens, H query heads, K key/value heads, D head size, I intermediate features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Binding, Destination, parameter
from octavo.nn.formats.base import Sliced, TensorSpec, WeightFormat
from octavo.nn.heads import Heads
from octavo.nn.parallel.collectives import all_reduce
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import Placement, Role, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One logical matrix of a projection. name: "" if it is the only one. unit: features that stay together when cut.

    repeat: ranks may hold the same unit where there are fewer units than ranks.
    """

    name: str = ""
    num_outs: int
    unit: int = 1
    repeat: bool = False


class Piece(nn.Module):
    """Parts that lie in the same tensors, as their format stores them."""

    def __init__(self, parts: tuple[Part, ...], weight_format: WeightFormat) -> None:
        super().__init__()
        self.parts = parts
        self.format = weight_format
        self.tensors: dict[str, Tensor] = {}
        self.bias: nn.Parameter | None = None

    def create(self, num_ins: int, placements: Mapping[str, Placement], bias: torch.dtype | None, adds: bool) -> None:
        """Make the parameters. num_ins: of the whole weight. bias: its dtype, if there is one; adds: whether it counts."""
        self.adds_bias = adds
        self.num_ins = num_ins
        self.placements = placements
        num_outs = sum(len(placements[part.name].outs) for part in self.parts)
        for spec in self.format.tensors(num_outs, len(placements[self.parts[0].name].ins)):
            self.register_parameter(spec.name, parameter(spec.shape, spec.dtype))
        if bias is not None:
            self.bias = parameter((num_outs,), bias)

    def targets(self) -> Mapping[str, Destination]:
        """Return the destinations of every part's tensors."""
        found: dict[str, Destination] = {}
        first = 0
        for part in self.parts:
            place, prefix = self.placements[part.name], f"{part.name}." if part.name else ""
            held = range(first, first + len(place.outs))
            for spec in self.format.tensors(part.num_outs, self.num_ins):
                local = self.get_parameter(spec.name)[cut_of(spec, outs=held, ins=range(len(place.ins)))]
                cut = cut_of(spec, outs=place.outs, ins=place.ins)
                found[prefix + spec.name] = Destination(tensor=local, shape=spec.shape, cut=cut)
            if self.bias is not None:
                local = self.bias[held.start : held.stop]
                cut = (slice(place.outs.start, place.outs.stop),)
                found[prefix + "bias"] = Destination(tensor=local, shape=(part.num_outs,), cut=cut)
            first = held.stop
        return found

    def repack(self) -> None:
        """Let the format repack."""
        self.tensors = {name: tensor for name, tensor in self.named_parameters() if name != "bias"}
        self.format.finalize(self.tensors)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [T, in] times the weight: [T, out]."""
        return self.format.apply(x, self.tensors, self.bias if self.adds_bias else None)


def cut_of(spec: TensorSpec, *, outs: range, ins: range) -> tuple[slice, ...]:
    """Return the slice of a tensor that holds these outputs and inputs."""
    cut = [slice(None)] * len(spec.shape)
    sliced: tuple[tuple[Sliced | None, range], ...] = ((spec.outs, outs), (spec.ins, ins))
    for along, features in sliced:
        if along is not None:
            assert features.start % along.unit == 0 and features.stop % along.unit == 0, "slices are whole units"
            cut[along.dim] = slice(features.start // along.unit, features.stop // along.unit)
    return tuple(cut)


class Linear(nn.Module):
    """What all projections share: parts, their formats and their places."""

    def __init__(self, num_ins: int, parts: tuple[Part, ...], role: Role, bias: bool) -> None:
        super().__init__()
        self.num_ins = num_ins
        self.parts = parts
        self.role: Role = role
        self.has_bias = bias
        self.pieces = nn.ModuleList()

    def assign(self, path: str, choose: Callable[[str, int], WeightFormat]) -> None:
        """Take a format for each part; neighbours in the same fusing format share one piece."""
        paths = [f"{path}.{part.name}" if part.name else path for part in self.parts]
        chosen = [(part, choose(where, self.num_ins)) for part, where in zip(self.parts, paths, strict=True)]
        runs: list[tuple[list[Part], WeightFormat]] = []
        for part, weight_format in chosen:
            if runs and runs[-1][1] == weight_format and weight_format.fuses:
                runs[-1][0].append(part)
            else:
                runs.append(([part], weight_format))
        self.pieces = nn.ModuleList(Piece(tuple(parts), weight_format) for parts, weight_format in runs)

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Cut every part and make the parameters."""
        placements = {
            part.name: place(self.role, mesh, (part.num_outs, self.num_ins), part.unit, part.repeat)
            for part in self.parts
        }
        self.sizes = [len(placements[part.name].outs) for part in self.parts]
        # The outputs of a row projection are summed over ranks: the bias, which all of them hold, is added once.
        adds = self.role != "row" or mesh.tensor.rank == 0
        for piece in self._pieces():
            piece.create(self.num_ins, placements, dtype if self.has_bias else None, adds)

    def destinations(self) -> Mapping[str, Destination]:
        """Return the destinations of all parts: `weight`, or `q.weight`, `k.weight`…"""
        return {name: found for piece in self._pieces() for name, found in piece.targets().items()}

    def finalize(self) -> None:
        """Let the formats repack."""
        for piece in self._pieces():
            piece.repack()
        self.run = tuple(self._pieces())

    def outputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return each part's outputs [T, out], as views of one tensor where parts are fused."""
        if len(self.run) == 1:
            return self.run[0](x).split(self.sizes, -1)
        return tuple(part for piece in self.run for part in piece(x).split([self._size(p) for p in piece.parts], -1))

    def _pieces(self) -> list[Piece]:
        return [piece for piece in self.pieces if isinstance(piece, Piece)]

    def _size(self, part: Part) -> int:
        return self.sizes[self.parts.index(part)]


class ReplicatedLinear(Linear):
    """A projection that every rank holds whole."""

    def __init__(self, num_ins: int, num_outs: int, bias: bool = False) -> None:
        super().__init__(num_ins, (Part(num_outs=num_outs),), "replicated", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return [T, out]."""
        return self.run[0](x)


class ColumnLinear(Linear):
    """A projection whose outputs are spread over ranks, `unit` of them together."""

    def __init__(self, num_ins: int, num_outs: int, bias: bool = False, unit: int = 1) -> None:
        super().__init__(num_ins, (Part(num_outs=num_outs, unit=unit),), "column", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return [T, out held here]."""
        return self.run[0](x)


class RowLinear(Linear):
    """A projection whose inputs are spread over ranks; outputs are summed."""

    def __init__(self, num_ins: int, num_outs: int, bias: bool = False) -> None:
        super().__init__(num_ins, (Part(num_outs=num_outs),), "row", bias)

    def bind(self, binding: Binding) -> None:
        """Take the sum over ranks."""
        self._reduce = all_reduce(binding.mesh.tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Return [T, out] from x [T, in held here]."""
        return self._reduce(self.run[0](x))


class QKVLinear(Linear):
    """Queries, keys and values from one product. Parts: q, k, v."""

    def __init__(self, num_ins: int, heads: Heads, bias: bool = False) -> None:
        dim = heads.dim
        parts = (
            Part(name="q", num_outs=heads.query * dim, unit=dim),
            Part(name="k", num_outs=heads.kv * dim, unit=dim, repeat=True),
            Part(name="v", num_outs=heads.kv * dim, unit=dim, repeat=True),
        )
        super().__init__(num_ins, parts, "column", bias)
        self.head_dim = dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [T, H, D], k [T, K, D] and v [T, K, D], strided views of one tensor where the format fuses."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.outputs(x))
        return q, k, v


class GatedQKVLinear(Linear):
    """Queries, a gate for what they find, keys and values from one product. Parts: q, gate, k, v."""

    def __init__(self, num_ins: int, heads: Heads, bias: bool = False) -> None:
        dim = heads.dim
        queries = (Part(name=name, num_outs=heads.query * dim, unit=dim) for name in ("q", "gate"))
        keys = (Part(name=name, num_outs=heads.kv * dim, unit=dim, repeat=True) for name in ("k", "v"))
        super().__init__(num_ins, (*queries, *keys), "column", bias)
        self.head_dim = dim

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q [T, H, D], the gate [T, H * D], k [T, K, D] and v [T, K, D]."""
        q, gate, k, v = self.outputs(x)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in (q, k, v))
        return q, gate, k, v


class GateUpLinear(Linear):
    """The two inner projections of a gated MLP from one product. Parts: gate, up."""

    def __init__(self, num_ins: int, num_outs: int, bias: bool = False) -> None:
        parts = (Part(name="gate", num_outs=num_outs), Part(name="up", num_outs=num_outs))
        super().__init__(num_ins, parts, "column", bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return gate [T, I] and up [T, I]."""
        gate, up = self.outputs(x)
        return gate, up
