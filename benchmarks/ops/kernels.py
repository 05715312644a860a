"""Times the Triton kernels on this machine's GPU, in graphs, over shapes of Llama-3.1-8B: `python -m benchmarks.ops.kernels`.

Keys and values lie as the engine lays them: pages of 16 tokens that hold all layers, at random places. Each figure is the
median of replays that go through several layers, so that nothing is found in the cache that would not be there in use.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from octavo.base.registry import import_path
from octavo.ops.paged_attention import Scoring
from octavo.ops.rope_write import HeadNorms, Rotation

HEADS, KV_HEADS, SIZE, HIDDEN, INNER, LAYERS, BLOCK = 32, 8, 128, 4096, 14336, 32, 16
# Rows and the tokens that each has kept.
DECODES = ((1, 128), (1, 640), (1, 8192), (8, 512), (16, 1024), (16, 8192), (64, 1024), (128, 1024), (1024, 576))
# Rows, new tokens, tokens before them.
CHUNKS = ((1, 2048, 0), (1, 16384, 0), (1, 4096, 12288), (16, 512, 0), (4, 64, 2048))
ROWS = (1, 64, 1024, 8192)
# Rows, tokens kept, heads.
LATENTS = ((1, 4096, 16), (16, 4096, 16), (128, 1024, 16), (64, 2048, 128))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Microseconds of one call: the median, the quickest and the slowest of all replays."""

    median: float
    least: float
    most: float


def measure(run: Callable[[int], object], calls: int, replays: int = 15) -> Timing:
    """Time `run(0)`, `run(1)`… `run(calls - 1)` in one graph."""
    stream = torch.cuda.Stream()  # noqa: TID251
    with torch.cuda.stream(stream):  # noqa: TID251
        run(0)
    torch.cuda.synchronize()  # noqa: TID251
    graph = torch.cuda.CUDAGraph()  # noqa: TID251
    with torch.cuda.graph(graph):  # noqa: TID251
        for call in range(calls):
            run(call)
    found: list[float] = []
    for replay in range(replays + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # noqa: TID251
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if replay >= 3:
            found.append(start.elapsed_time(stop) * 1000 / calls)
    return Timing(median=statistics.median(found), least=min(found), most=max(found))


class Pool:
    """Pages of all layers, filled with random numbers."""

    def __init__(self, num_pages: int, kv_heads: int = KV_HEADS, layers: int = LAYERS, block: int = BLOCK) -> None:
        self.num_pages, self.layers, self.block = num_pages, layers, block
        shape = (num_pages, layers, 2, kv_heads, block, SIZE)
        self.pages = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        for part in self.pages.chunk(64):
            part.normal_()

    def planes(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer."""
        keys, values = self.pages[:, layer % self.layers].unbind(1)
        return keys, values

    def table(self, rows: int, tokens: int) -> Tensor:
        """Return a table of random pages."""
        columns = -(-tokens // self.block)
        places = torch.randperm(self.num_pages, device="cuda")[: rows * columns]
        return places.view(rows, columns).to(torch.int32)


def starts_of(counts: Sequence[int]) -> Tensor:
    """Return query_starts."""
    return torch.tensor([0, *counts], device="cuda").cumsum(0).to(torch.int32)


def attention(pool: Pool, rows: int, new: int, before: int, heads: int = HEADS) -> Timing:
    """Time attention of `rows` rows with `new` tokens each after `before`."""
    attend = import_path("octavo.ops.paged_attention.triton:paged_attention")
    kept = new + before
    q = torch.randn(rows * new, heads, SIZE, device="cuda").to(torch.bfloat16)
    table, starts = pool.table(rows, kept), starts_of([new] * rows)
    lengths, scoring = torch.full((rows,), kept, dtype=torch.int32, device="cuda"), Scoring(scale=SIZE**-0.5)
    calls = pool.layers if rows * kept < 2**16 else 4
    return measure(lambda layer: attend(q, *pool.planes(layer), table, starts, lengths, scoring), calls)


def elementwise(pool: Pool, tokens: int) -> Iterator[tuple[str, int, Timing]]:
    """Yield (kernel, bytes that it must move, its time) at this many tokens."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda").to(torch.bfloat16)

    add_norm = import_path("octavo.ops.rms_norm.triton:add_rms_norm")
    gated = import_path("octavo.ops.gated_activation.triton:gated_activation")
    rope_write = import_path("octavo.ops.rope_write.triton:rope_write")
    calls = 8
    x, residual, weight = random(calls, tokens, HIDDEN), random(tokens, HIDDEN), random(HIDDEN)
    timing = measure(lambda call: add_norm(x[call], residual, weight, 1e-6), calls)
    yield "add_rms_norm", 8 * tokens * HIDDEN, timing
    gate, up = random(tokens, 2 * INNER).chunk(2, -1)
    yield "gated_activation", 6 * tokens * INNER, measure(lambda _: gated(gate, up, "silu"), calls)
    q, k, v = random(tokens, HEADS + 2 * KV_HEADS, SIZE).split([HEADS, KV_HEADS, KV_HEADS], 1)
    places = torch.randperm(pool.num_pages * pool.block, device="cuda")[:tokens]
    norms = HeadNorms(q=random(SIZE), k=random(SIZE), eps=1e-6)
    rotation = Rotation(positions=places % 4096, table=torch.randn(4096, SIZE, device="cuda"))
    pages, offsets = places // pool.block, places % pool.block
    timing = measure(lambda call: rope_write(q, k, v, norms, rotation, pool.planes(call), pages, offsets), calls)
    yield "rope_write", 4 * tokens * (HEADS + 2 * KV_HEADS) * SIZE, timing


def experts(tokens: int, num: int = 128, each: int = 8, hidden: int = 2048, inner: int = 768) -> tuple[int, Timing]:
    """Return (experts that tokens are routed to, the time), for shapes of Qwen3-30B-A3B."""
    grouped = import_path("octavo.ops.grouped_experts.triton:grouped_experts")
    x = torch.randn(tokens, hidden, device="cuda").to(torch.bfloat16)
    up, down = (
        torch.randn(4, num, *shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((2 * inner, hidden), (hidden, inner))
    )
    weights, chosen = torch.rand(tokens, num, device="cuda").topk(each, -1)

    def run(layer: int) -> Tensor:
        stacks = (SimpleNamespace(tensors={"weight": matrices[layer]}) for matrices in (up, down))
        return grouped(x, chosen, weights, *stacks, "silu", None)

    return len(chosen.unique()), measure(run, 4)


def latents(rows: int, kept: int, heads: int) -> Timing:
    """Time one new token of each row over latents of 512 + 64 features."""
    attend = import_path("octavo.ops.latent_attention.triton:latent_attention")
    blocks, layers = rows * kept // BLOCK, max(1, 2**17 // (rows * kept))
    pages = torch.empty(blocks, layers, BLOCK, 576, dtype=torch.bfloat16, device="cuda").normal_()
    table = torch.randperm(blocks, device="cuda").view(rows, -1).to(torch.int32)
    q = torch.randn(rows, heads, 576, device="cuda").to(torch.bfloat16)
    starts, lengths = starts_of([1] * rows), torch.full((rows,), kept, dtype=torch.int32, device="cuda")
    scoring = Scoring(scale=0.1)
    return measure(lambda n: attend(q, pages[:, n : n + 1], 512, table, starts, lengths, scoring), layers)


def main() -> None:
    """Print a table."""
    x, y = torch.randn(2, 2**30, device="cuda")
    copied = measure(lambda _: torch.neg(x, out=y), 4)
    print(f"{'copy of 4 GiB':<40}{_words(copied)}{2 * 2**32 / copied.median / 1e6:>8.2f} TB/s")
    pool = Pool(max(rows * -(-kept // BLOCK) for rows, kept in DECODES))
    for rows, kept in DECODES:
        timing = attention(pool, rows, 1, kept - 1)
        rate = rows * kept * 4 * KV_HEADS * SIZE / timing.median / 1e6
        print(f"{f'decode {rows} x {kept}':<40}{_words(timing)}{rate:>8.2f} TB/s")
    for rows, new, before in CHUNKS:
        timing = attention(pool, rows, new, before)
        flops = 4 * rows * HEADS * SIZE * new * (before + (new + 1) / 2)
        print(
            f"{f'chunk {rows} x {new} after {before}':<40}{_words(timing)}{flops / timing.median / 1e6:>8.0f} TFLOP/s"
        )
    del pool
    for rows, kept, heads in LATENTS:
        timing = latents(rows, kept, heads)
        rate = rows * kept * 1152 / timing.median / 1e6
        print(f"{f'latents {rows} x {kept}, {heads} heads':<40}{_words(timing)}{rate:>8.2f} TB/s")
    for tokens in (*ROWS, 8):
        num, timing = experts(tokens)
        num_bytes, flops = num * 3 * 2048 * 768 * 2, tokens * 8 * 6 * 2048 * 768
        print(
            f"{f'experts, {tokens} tokens to {num}':<40}{_words(timing)}{num_bytes / timing.median / 1e6:>8.2f} TB/s"
            f"{flops / timing.median / 1e6:>8.0f} TFLOP/s"
        )
    pool = Pool(1024)
    for tokens in ROWS:
        for name, num_bytes, timing in elementwise(pool, tokens):
            print(f"{f'{name}, {tokens} tokens':<40}{_words(timing)}{num_bytes / timing.median / 1e6:>8.2f} TB/s")


def _words(timing: Timing) -> str:
    return f"{timing.median:>10.1f} us ({timing.least:.1f} to {timing.most:.1f})".ljust(40)


if __name__ == "__main__":
    main()
