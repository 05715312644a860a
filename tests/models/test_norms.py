"""Norms that are more than their kernel: a scale that the checkpoint holds less one, and heads that ranks share."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from octavo.nn.assembly import Binding
from octavo.nn.norm import OffsetRMSNorm, ProjectionRMSNorm
from octavo.nn.parallel.mesh import Axis, Mesh
from octavo.ops.registry import bind
from tests.fake_device import fake_device


def binding(dtype: str) -> Binding:
    facts = fake_device().facts
    return Binding(
        facts=facts, dtype=dtype, device=torch.device("cpu"), kernels=bind(facts, dtype), mesh=Mesh(), max_model_len=1
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scale_keeps_every_digit_of_the_weight(dtype: torch.dtype) -> None:
    oracle = Gemma2RMSNorm(64, eps=1e-6).to(dtype)
    with torch.no_grad():
        oracle.weight.copy_(torch.randn(64) / 100)
    norm = OffsetRMSNorm(64, 1e-6)
    norm.place(Mesh(), dtype)
    norm.stored = nn.Parameter(torch.empty(64), requires_grad=False)
    norm.bind(binding(str(dtype).removeprefix("torch.")))
    for factor in (1, 3):
        with torch.no_grad():
            oracle.weight.mul_(factor)
        place = norm.weight.data_ptr()
        norm.destinations()["weight"].tensor.copy_(oracle.weight.detach())
        norm.finalize()
        norm.finalize()
        assert norm.weight.data_ptr() == place or factor == 1
        x = torch.randn(9, 64).to(dtype)
        torch.testing.assert_close(norm(x), oracle(x), rtol=0, atol=1e-6 if dtype == torch.float32 else 0)


# With three ranks or six, neighbours hold the same key head.
@pytest.mark.parametrize(("num_heads", "ranks"), [(6, 1), (6, 2), (6, 3), (2, 6)])
def test_heads_that_ranks_share_are_normalized_together(num_heads: int, ranks: int) -> None:
    oracle, x = Olmo2RMSNorm(num_heads * 4, eps=1e-5), torch.randn(5, num_heads, 4)
    with torch.no_grad():
        oracle.weight.copy_(torch.randn(num_heads * 4))
        expected = oracle(x.flatten(1)).view(x.shape)
    norms = [ProjectionRMSNorm(num_heads, 4, 1e-5) for _ in range(ranks)]
    parts: list[torch.Tensor] = []
    for rank, norm in enumerate(norms):
        norm.place(Mesh(tensor=Axis(size=ranks, rank=rank)), torch.float32)
        (target,) = norm.destinations().values()
        norm.weight = nn.Parameter(oracle.weight.detach()[target.cut], requires_grad=False)
        parts.append(x.flatten(1)[:, target.cut[0]].unflatten(1, (-1, 4)))
    total = torch.stack([part.flatten(1).square().mean(-1, keepdim=True) for part in parts]).sum(0)
    for norm, part in zip(norms, parts, strict=True):
        norm._reduce = lambda mean: total
        torch.testing.assert_close(norm(part), expected[:, norm.held.start // 4 : norm.held.stop // 4])
