"""Mixtures of experts: the kernel against a loop over tokens, the choice of experts, and experts spread over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.device.registry import detect
from octavo.nn.assembly import Binding
from octavo.nn.formats.base import TensorSpec, WeightFormat
from octavo.nn.formats.dense import DenseFormat
from octavo.nn.moe import Experts, Router, Routing
from octavo.nn.parallel.mesh import Axis, Mesh
from octavo.ops.registry import bind
from octavo.worker.loader.assemble import assign_formats, called, finalize, materialize, place
from tests.fake_device import fake_device
from tests.kernels.binding import TOLERANCE, candidates, cases, kernel

NUM, HIDDEN, INNER = 6, 10, 8
WEIGHTS = {
    f"{expert}.{part}.weight": torch.randn(*shape, generator=torch.Generator().manual_seed(expert * 3 + i))
    for expert in range(NUM)
    for i, (part, shape) in enumerate({"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}.items())
}


def experts(mesh: Mesh, candidate: str, dtype: str = "float32") -> Experts:
    """Make one rank's experts, without collectives."""
    made = Experts(NUM, HIDDEN, INNER, "silu")
    assign_formats(made, lambda path, num_ins: DenseFormat(dtype=getattr(torch, dtype)))
    place(made, mesh, getattr(torch, dtype))
    materialize(made, torch.device("cpu"))
    grouped = kernel("grouped_experts", candidate, dtype)
    kernels = replace(bind(detect("cpu").facts, "float32"), grouped_experts=grouped)
    made.bind(
        Binding(
            facts=detect("cpu").facts,
            dtype="float32",
            device=torch.device("cpu"),
            kernels=kernels,
            mesh=Mesh(),
            max_model_len=1,
        )
    )
    for name, target in made.destinations().items():
        assert target.shape == tuple(WEIGHTS[name].shape)
        target.tensor.copy_(WEIGHTS[name][target.cut])
    finalize(made)
    return made


class Scaled:
    """A format of two tensors."""

    fuses = True

    def tensors(self, num_outs: int, num_ins: int) -> tuple[TensorSpec, ...]:
        (weight,) = DenseFormat(dtype=torch.float32).tensors(num_outs, num_ins)
        return weight, replace(weight, name="scale")

    def finalize(self, tensors: Mapping[str, Tensor]) -> None:
        pass

    def apply(self, x: Tensor, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        return F.linear(x, tensors["weight"] * tensors["scale"], bias)


@pytest.mark.parametrize(
    ("stored", "unrecordable"), [(DenseFormat(dtype=torch.float32), ()), (Scaled(), ("experts_in_turn torch",))]
)
def test_experts_in_formats_without_a_kernel_are_not_recorded(
    stored: WeightFormat, unrecordable: tuple[str, ...]
) -> None:
    made, facts = Experts(NUM, HIDDEN, INNER, "silu"), fake_device(kind="cuda", arch="sm_90").facts
    assign_formats(made, lambda path, num_ins: stored)
    place(made, Mesh(), torch.float32)
    kernels = bind(facts, "float32")
    device = torch.device("cpu")
    made.bind(Binding(facts=facts, dtype="float32", device=device, kernels=kernels, mesh=Mesh(), max_model_len=1))
    assert called(made, kernels.unrecordable) == unrecordable


def by_token(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.float64)
    for t in range(len(x)):
        for expert, weight in zip(chosen[t].tolist(), weights[t].double(), strict=True):
            gate, up, down = (WEIGHTS[f"{expert}.{part}.weight"].double() for part in ("gate", "up", "down"))
            out[t] += weight * (down @ (F.silu(gate @ x[t].double()) * (up @ x[t].double())))
    return out.float()


def work(num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    scores = torch.rand(num_tokens, NUM, generator=generator)
    # Nobody takes expert 4, and many take expert 1.
    scores[:, 4], scores[::2, 1] = -1, 2
    weights, chosen = scores.topk(3, -1)
    return torch.randn(num_tokens, HIDDEN, generator=generator), chosen, weights


@pytest.mark.parametrize(("candidate", "dtype"), cases("grouped_experts"))
@pytest.mark.parametrize("num_tokens", [1, 2, 37, 500])
def test_against_a_loop_over_tokens(candidate: str, dtype: str, num_tokens: int) -> None:
    x, chosen, weights = work(num_tokens)
    found = experts(Mesh(), candidate, dtype)(x.to(getattr(torch, dtype)), chosen, weights)
    expected = by_token(x, chosen, weights)
    # In 16 bits, weights, inputs and what lies between the products are rounded.
    bound = 1e-5 if dtype == "float32" else 8 * TOLERANCE[dtype]
    torch.testing.assert_close(found.float(), expected, rtol=bound, atol=bound * float(expected.abs().max()))


@pytest.mark.parametrize("candidate", candidates("grouped_experts"))
@pytest.mark.parametrize(("tensor", "expert"), [(2, 1), (1, 2), (1, 3), (2, 3), (4, 2)])
@pytest.mark.parametrize("table", [(), (5, 0, 3, 1, 4, 2)])
def test_ranks_add_up(candidate: str, tensor: int, expert: int, table: tuple[int, ...]) -> None:
    x, chosen, weights = work(11)
    total, held = torch.zeros_like(x), list[str]()
    for i in range(tensor):
        for j in range(expert):
            mesh = Mesh(tensor=Axis(size=tensor, rank=i), expert=Axis(size=expert, rank=j), experts=table)
            rank = experts(mesh, candidate)
            held += [
                name.partition(".")[0]
                for name, target in rank.destinations().items()
                if "down" in name and target.tensor.numel()
            ]
            total += rank(x, chosen, weights)
    assert sorted(held) == sorted(str(number) for number in range(NUM) for _ in range(tensor))
    torch.testing.assert_close(total, by_token(x, chosen, weights))


def router(routing: Routing, scores: Tensor) -> tuple[Tensor, Tensor]:
    made = Router(len(scores), routing)
    made.run = (lambda x: x,)
    return made.choose(scores[None].log())


def test_groups_limit_the_choice() -> None:
    scores = torch.tensor([0.30, 0.02, 0.19, 0.18, 0.05, 0.26])
    free = Routing(num_experts=6, experts_per_token=3, normalize=False)
    chosen, weights = router(free, scores)
    assert chosen.tolist() == [[0, 5, 2]]
    torch.testing.assert_close(weights, torch.tensor([[0.30, 0.26, 0.19]]))
    # Of the groups (0, 1), (2, 3) and (4, 5) the second has the worst best expert.
    limited = Routing(num_experts=6, experts_per_token=3, normalize=True, scale=2.0, groups=3, group_limit=2)
    chosen, weights = router(limited, scores)
    assert chosen.tolist() == [[0, 5, 4]]
    torch.testing.assert_close(weights, torch.tensor([[0.30, 0.26, 0.05]]) / 0.61 * 2)
