"""Kernels inside a CUDA graph: what is replayed follows the tensors that it was captured with, whatever they hold by then."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from octavo.base.registry import import_path
from octavo.ops.paged_attention import Scoring, Span
from octavo.ops.paged_attention.reference import paged_attention as reference
from tests.kernels.binding import NAN

pytestmark = pytest.mark.gpu
HEADS, KV_HEADS, SIZE, BLOCK, PAGES, ROWS = 8, 2, 64, 16, 400, 6
# For each token bucket, batches of (tokens after the step, of them queries), at most ROWS of them; the rest is padding.
DECODES = [[(700, 1)] * 6, [(1, 1), (900, 1), (17, 1)], [(33, 1)], [(64, 1), (1000, 1), (5, 1), (513, 1), (16, 1)]]
CHUNKS = [[(700, 40)], [(700, 1), (39, 39)], [(900, 7), (5, 5), (1, 1), (300, 20)], [(9, 1)]]
LONG_CHUNKS = [[(700, 300)], [(700, 1), (299, 299)], [(1000, 1)] * 6, [(400, 1), (900, 280), (16, 16)]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(
    ("num_tokens", "batches"), [(6, DECODES), (40, CHUNKS), (300, LONG_CHUNKS)], ids=["decodes", "chunks", "mixed"]
)
def test_attention_follows_lengths_tables_and_rows(
    dtype: str, window: int | None, num_tokens: int, batches: Sequence[Sequence[tuple[int, int]]]
) -> None:
    paged_attention = import_path("octavo.ops.paged_attention.triton:paged_attention")
    generator, torch_dtype = torch.Generator().manual_seed(3), getattr(torch, dtype)
    pool = torch.randn(PAGES, 2, KV_HEADS, BLOCK, SIZE, generator=generator).to(torch_dtype)
    there, scoring = pool.cuda(), Scoring(scale=0.2, window=window)
    q = torch.zeros(num_tokens, HEADS, SIZE, dtype=torch_dtype, device="cuda")
    table = torch.zeros(ROWS, 64, dtype=torch.int32, device="cuda")
    starts = torch.zeros(ROWS + 1, dtype=torch.int32, device="cuda")
    lengths = torch.zeros(ROWS, dtype=torch.int32, device="cuda")

    def run() -> torch.Tensor:
        return paged_attention(q, there[:, 0], there[:, 1], table, starts, lengths, scoring)

    run()
    graph = torch.cuda.CUDAGraph()  # noqa: TID251
    with torch.cuda.graph(graph):  # noqa: TID251
        found = run()
    for batch in batches:
        counts = [count for _, count in batch] + [0] * (ROWS - len(batch))
        new_starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        new_lengths = torch.tensor([length for length, _ in batch] + [0] * (ROWS - len(batch)), dtype=torch.int32)
        new_table = torch.randint(PAGES, (ROWS, 64), generator=generator, dtype=torch.int32)
        new_q = torch.randn(num_tokens, HEADS, SIZE, generator=generator).to(torch_dtype)
        for old, new in ((q, new_q), (table, new_table), (starts, new_starts), (lengths, new_lengths)):
            old.copy_(new)
        found.fill_(NAN)
        graph.replay()
        expected = reference(new_q.double(), *pool.double().unbind(1), new_table, new_starts, new_lengths, scoring).to(
            torch_dtype
        )
        bound = {"float32": 2e-5, "float16": 1e-3, "bfloat16": 8e-3}[dtype] * float(expected.abs().max())
        torch.testing.assert_close(found.cpu(), expected, rtol=0.0, atol=bound)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_attention_follows_what_rows_share(dtype: str) -> None:
    paged_attention = import_path("octavo.ops.paged_attention.triton:paged_attention")
    generator, torch_dtype = torch.Generator().manual_seed(5), getattr(torch, dtype)
    pool = torch.randn(PAGES, 2, KV_HEADS, BLOCK, SIZE, generator=generator).to(torch_dtype)
    there, scoring = pool.cuda(), Scoring(scale=0.2)
    q = torch.zeros(ROWS, HEADS, SIZE, dtype=torch_dtype, device="cuda")
    table = torch.zeros(ROWS, 64, dtype=torch.int32, device="cuda")
    starts, lengths = torch.arange(ROWS + 1, dtype=torch.int32).cuda(), torch.ones(ROWS, dtype=torch.int32).cuda()
    span = Span(table=table[0].clone(), length=starts[:1].clone(), skips=torch.zeros_like(lengths))

    def run() -> torch.Tensor:
        return paged_attention(q, there[:, 0], there[:, 1], table, starts, lengths, scoring, span)

    run()
    graph = torch.cuda.CUDAGraph()  # noqa: TID251
    with torch.cuda.graph(graph):  # noqa: TID251
        found = run()
    for shared, members in ((0, []), (16, [0, 5]), (608, [1, 2, 3]), (0, []), (320, [0, 1, 2, 3, 4, 5])):
        new_lengths = torch.randint(shared + 1, 1000, (ROWS,), generator=generator, dtype=torch.int32)
        new_table = torch.randint(PAGES, (ROWS, 64), generator=generator, dtype=torch.int32)
        new_skips = torch.zeros(ROWS, dtype=torch.int32)
        if members:
            new_table[members, : shared // BLOCK] = new_table[members[0], : shared // BLOCK]
            new_skips[members] = shared
            span.table.copy_(new_table[members[0]])
        new_q = torch.randn(ROWS, HEADS, SIZE, generator=generator).to(torch_dtype)
        for old, new in ((q, new_q), (table, new_table), (lengths, new_lengths), (span.skips, new_skips)):
            old.copy_(new)
        span.length.fill_(shared)
        for _ in range(3):
            found.fill_(NAN)
            graph.replay()
        expected = reference(new_q.double(), *pool.double().unbind(1), new_table, starts.cpu(), new_lengths, scoring)
        bound = {"float32": 2e-5, "bfloat16": 8e-3}[dtype] * float(expected.abs().max())
        torch.testing.assert_close(found.cpu(), expected.to(torch_dtype), rtol=0.0, atol=bound)


@pytest.mark.parametrize("num_tokens", [3, 200])
def test_experts_follow_the_router(num_tokens: int) -> None:
    grouped = import_path("octavo.ops.grouped_experts.triton:grouped_experts")
    generator, num, each, hidden, inner = torch.Generator().manual_seed(5), 10, 4, 96, 80
    up = torch.randn(num, 2 * inner, hidden, generator=generator) / hidden**0.5
    down = torch.randn(num, hidden, inner, generator=generator) / inner**0.5
    stacks = [SimpleNamespace(tensors={"weight": matrix.cuda()}) for matrix in (up, down)]
    x, weights = torch.zeros(num_tokens, hidden, device="cuda"), torch.zeros(num_tokens, each, device="cuda")
    experts = torch.zeros(num_tokens, each, dtype=torch.int64, device="cuda")
    grouped(x, experts, weights, *stacks, "silu", None)
    graph = torch.cuda.CUDAGraph()  # noqa: TID251
    with torch.cuda.graph(graph):  # noqa: TID251
        found = grouped(x, experts, weights, *stacks, "silu", None)
    for held in (num, 3, 1):
        # The others are on another rank: they add nothing.
        new_experts = torch.randint(-1, held + 1, (num_tokens, each), generator=generator)
        new_experts[new_experts == held] = num
        new_x, new_weights = (
            torch.randn(num_tokens, hidden, generator=generator),
            torch.rand(num_tokens, each, generator=generator),
        )
        for old, new in ((x, new_x), (weights, new_weights), (experts, new_experts)):
            old.copy_(new)
        found.fill_(NAN)
        graph.replay()
        expected = torch.zeros(num_tokens, hidden, dtype=torch.float64)
        for choice in range(each):
            chosen = new_experts[:, choice]
            here = (chosen >= 0) & (chosen < num)
            gate, other = torch.einsum("toi,ti->to", up[chosen.clamp(0, num - 1)].double(), new_x.double()).chunk(2, -1)
            y = torch.einsum("toi,ti->to", down[chosen.clamp(0, num - 1)].double(), F.silu(gate) * other)
            expected += here[:, None] * new_weights[:, choice, None].double() * y
        torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
