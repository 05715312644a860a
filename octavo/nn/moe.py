"""Mixtures of experts: a router, and stacks of expert weights in the same formats as any projection.

Shapes: T tokens, N hidden features, I intermediate features of one expert, E experts, A experts a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.base.facts import Activation
from octavo.nn.assembly import Binding, Destination, nothing, parameter
from octavo.nn.formats.base import WeightFormat
from octavo.nn.linear import Part, ReplicatedLinear, cut_of
from octavo.nn.mlp import GatedMLP
from octavo.nn.parallel.collectives import all_reduce
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import Role, place, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's experts are chosen from the softmax of its scores.

    normalize: their weights are scaled to a sum of 1. scale: then multiplied by it. groups, group_limit: experts lie in
    `groups` groups, and only those of the `group_limit` groups with the best expert are eligible (DeepSeek-V2, 2024).
    """

    num_experts: int
    experts_per_token: int
    normalize: bool
    scale: float = 1.0
    groups: int = 1
    group_limit: int = 1


class Router(ReplicatedLinear):
    """Scores of every expert, and the choice."""

    def __init__(self, hidden_size: int, routing: Routing) -> None:
        super().__init__(hidden_size, routing.num_experts)
        self.routing = routing

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logical experts, int64 [T, A], and their weights, float32 [T, A], of x [T, N]."""
        routing = self.routing
        scores = self(x).float().softmax(-1)
        eligible = scores
        if routing.groups > 1:
            grouped = scores.unflatten(-1, (routing.groups, -1))
            best = grouped.amax(-1).topk(routing.group_limit, -1).indices
            kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, True)
            eligible = grouped.masked_fill(~kept[..., None], 0.0).flatten(-2)
        weights, experts = eligible.topk(routing.experts_per_token, -1)
        if routing.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return experts, weights * routing.scale


class ExpertLinear(nn.Module):
    """One projection of every expert: the tensors of its format, each with a leading expert axis."""

    def __init__(self, num_experts: int, num_ins: int, parts: tuple[Part, ...], role: Role) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.num_ins = num_ins
        self.parts = parts
        self.role: Role = role
        self.tensors: Mapping[str, Tensor] = {}

    def assign(self, path: str, choose: Callable[[str, int], WeightFormat]) -> None:
        """Take one format for all experts and parts."""
        self.format = choose(path, self.num_ins)

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Cut every expert, keep the experts of this rank and make the parameters."""
        mesh = mesh.of_experts
        self.held = share(self.num_experts, mesh.expert)
        self.places = {p.name: place(self.role, mesh, (p.num_outs, self.num_ins), p.unit) for p in self.parts}
        self.sizes = [len(self.places[part.name].outs) for part in self.parts]
        num_ins = len(self.places[self.parts[0].name].ins)
        for spec in self.format.tensors(sum(self.sizes), num_ins):
            self.register_parameter(spec.name, parameter((len(self.held), *spec.shape), spec.dtype))

    def targets(self, order: Mapping[int, int]) -> Mapping[str, Destination]:
        """Return `<logical expert>.<part>.<tensor>`. order: logical expert -> its place."""
        found: dict[str, Destination] = {}
        for logical, physical in order.items():
            first = 0
            for part in self.parts:
                where = self.places[part.name]
                held = range(first, first + len(where.outs))
                for spec in self.format.tensors(part.num_outs, self.num_ins):
                    if physical not in self.held:
                        found[f"{logical}.{part.name}.{spec.name}"] = nothing(spec.shape)
                        continue
                    whole = self.get_parameter(spec.name)[physical - self.held.start]
                    local = whole[cut_of(spec, outs=held, ins=range(len(where.ins)))]
                    cut = cut_of(spec, outs=where.outs, ins=where.ins)
                    found[f"{logical}.{part.name}.{spec.name}"] = Destination(tensor=local, shape=spec.shape, cut=cut)
                first = held.stop
        return found

    def finalize(self) -> None:
        """Let the format repack every expert."""
        self.tensors = dict(self.named_parameters())
        for expert in range(len(self.held)):
            self.format.finalize(self._of(expert))

    def product(self, x: Tensor, expert: int) -> tuple[Tensor, ...]:
        """See `ExpertStack.product`."""
        return self.format.apply(x, self._of(expert), None).split(self.sizes, -1)

    def _of(self, expert: int) -> dict[str, Tensor]:
        return {name: tensor[expert] for name, tensor in self.tensors.items()}


class Experts(nn.Module):
    """Gated feed-forwards of which each token takes some. `order` (from the mesh): the place of each logical expert."""

    order: Tensor

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int, activation: Activation) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.activation: Activation = activation
        gate_up = (Part(name="gate", num_outs=intermediate_size), Part(name="up", num_outs=intermediate_size))
        self.gate_up = ExpertLinear(num_experts, hidden_size, gate_up, "column")
        down = (Part(name="down", num_outs=hidden_size),)
        self.down = ExpertLinear(num_experts, intermediate_size, down, "row")

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle where each expert lies."""
        self.table = mesh.experts or tuple(range(self.num_experts))
        assert sorted(self.table) == list(range(self.num_experts)), "every expert has a place of its own"

    def bind(self, binding: Binding) -> None:
        """Take the kernels, the table as a tensor, and the sums over ranks."""
        self._grouped, self._gated = binding.kernels.grouped_experts, binding.kernels.gated_activation
        self.order = torch.tensor(self.table, device=binding.device)
        mesh = binding.mesh.of_experts
        self._over_tensor, self._over_expert = all_reduce(mesh.tensor), all_reduce(mesh.expert)

    def destinations(self) -> Mapping[str, Destination]:
        """Return `0.gate.weight`, `0.down.weight`… by logical expert."""
        order = dict(enumerate(self.table))
        return {**self.gate_up.targets(order), **self.down.targets(order)}

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Return [T, N] of x [T, N] through logical experts, int64 [T, A], weighted by float32 [T, A]."""
        places = self.order[experts] - self.gate_up.held.start
        y = self._grouped(x, places, weights, self.gate_up, self.down, self.activation, self._gated)
        return self._over_expert(self._over_tensor(y))


class SparseMLP(nn.Module):
    """Routed experts, and beside them those that every token takes, as one block of `shared_size` features.

    gated: the shared ones are weighed by a sigmoid of x. bias: they have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        routing: Routing,
        *,
        shared_size: int = 0,
        bias: bool = False,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.router = Router(hidden_size, routing)
        self.experts = Experts(routing.num_experts, hidden_size, intermediate_size, activation)
        self.shared = GatedMLP(hidden_size, shared_size, activation, bias) if shared_size else None
        self.shared_gate = ReplicatedLinear(hidden_size, 1) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [T, N] from x [T, N]."""
        y = self.experts(x, *self.router.choose(x))
        if self.shared is None:
            return y
        common = self.shared(x)
        return y + (common if self.shared_gate is None else common * self.shared_gate(x).sigmoid())
