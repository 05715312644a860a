"""Compile every Triton kernel for a target that need not be here: `python -m tests.kernels.compile_ahead cuda:90`.

The launchers are called as always, with tensors in the processor's memory; where a kernel would be launched it is compiled.
So what is compiled is what a launch needs: its types, its constants, its alignments. Prints one line for each kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from octavo.base.registry import import_path
from octavo.ops.paged_attention import Scoring
from octavo.ops.recurrence import StatePages
from octavo.ops.rope_write import HeadNorms, Rotation
from octavo.ops.triton_target import shared_bytes
from tools.absent_gpu import AbsentDriver

BFLOAT16, TOKENS = torch.bfloat16, 5


def random(*shape: int, dtype: torch.dtype = BFLOAT16) -> Tensor:
    return torch.randn(shape).to(dtype)


def calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield (op.function, arguments) of representative launches."""
    wide, weight = random(TOKENS, 32 + 16, 128), random(128)
    q, k, v = wide.split([32, 8, 8], 1)
    places = torch.arange(TOKENS)
    yield "rms_norm.triton:rms_norm", (q, weight, 1e-6)
    yield "rms_norm.triton:add_rms_norm", (random(TOKENS, 4096), random(TOKENS, 4096), random(4096), 1e-6)
    yield "rms_norm.triton:add_layer_norm", (random(5, 768), random(5, 768), random(768), random(768), 1e-6)
    yield "rope_write.triton:rope", (q, k, places, torch.randn(40, 128))
    pages = random(10, 2, 8, 16, 128).unbind(1)
    yield "page_write.triton:page_write", (k, v, *pages, places, places)
    norms = HeadNorms(q=weight, k=weight, eps=1e-6)
    rotation = Rotation(positions=places, table=torch.randn(40, 128))
    yield "rope_write.triton:rope_write", (q, k, v, norms, rotation, pages, places, places)
    yield "page_write.triton:page_copy", (torch.zeros(9, 4096, dtype=torch.uint8), places[:2], places[2:4])
    yield from attention_calls()
    yield from other_calls()
    gate, up = random(TOKENS, 2 * 3072).chunk(2, -1)
    yield "gated_activation.triton:gated_activation", (gate, up, "gelu_tanh")
    yield "gated_activation.triton:activation", (gate, "gelu")
    slots, wholes = torch.arange(2), torch.zeros(3, 5, dtype=torch.int64)
    yield "draw.triton:draw", (torch.randn(2, 5000), slots, slots, torch.ones(3, 3, dtype=torch.float64), wholes)


def attention_calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield decodes, a chunk and a mixed batch, over heads of several sizes and with everything that scores can have."""
    plain, rich = Scoring(scale=0.1), Scoring(scale=0.1, window=100, softcap=30.0, sinks=random(8))
    sloped = Scoring(scale=0.1, slopes=torch.rand(8))
    for op, dtype, size, scoring, tokens, rows in (
        ("paged", BFLOAT16, 128, plain, 300, 3),
        ("paged", BFLOAT16, 256, rich, 3, 3),
        ("paged", torch.float32, 64, plain, 3, 3),
        ("paged", torch.float32, 256, plain, 40, 3),
        ("paged", torch.float16, 80, sloped, 3, 3),
        ("cross", BFLOAT16, 64, 0.1, 3, 3),
    ):
        planes = random(10, 2, 2, 16, size, dtype=dtype).unbind(1)
        table, lengths = torch.zeros(rows, 100, dtype=torch.int32), torch.ones(rows, dtype=torch.int32)
        starts = torch.zeros(rows + 1, dtype=torch.int32)
        q = random(tokens, 8, size, dtype=dtype)
        folder = "encoder" if op == "cross" else op
        yield f"{folder}_attention.triton:{op}_attention", (q, *planes, table, starts, lengths, scoring)
    q = random(300, 8, 64)
    yield "encoder_attention.triton:row_attention", (q, q, q, torch.zeros(2, dtype=torch.int32), 0.1)
    table, lengths = torch.zeros(3, 100, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
    # Small chips have no room for latents of float32.
    for dtype, tokens in ((BFLOAT16, 3), (torch.float32, 40))[: 2 if shared_bytes() > 128 * 1024 else 1]:
        latents, q = random(10, 1, 16, 576, dtype=dtype), random(tokens, 16, 576, dtype=dtype)
        yield (
            "latent_attention.triton:latent_attention",
            (q, latents, 512, table, torch.arange(4, dtype=torch.int32), lengths, plain),
        )


def other_calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield what recurrent layers and experts launch."""
    before, fresh = torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, dtype=torch.bool)
    pages = StatePages(before=before, after=before, fresh=fresh)
    starts = torch.zeros(3, dtype=torch.int32)
    yield "recurrence.triton:causal_conv", (random(5, 512), random(512, 4), random(9, 4, 1, 384), pages, starts)
    heads, rates = random(5, 4, 128), torch.rand(5, 4)
    states = torch.zeros(9, 4, 1, 128 * 128)
    yield "recurrence.triton:gated_delta_rule", (heads, heads, heads, rates, rates, states, pages, starts)
    up, down = (SimpleNamespace(tensors={"weight": random(8, *shape)}) for shape in ((1536, 256), (256, 768)))
    for pairs in (10, 2000):
        experts, weights = torch.zeros(pairs // 2, 2, dtype=torch.int64), torch.rand(pairs // 2, 2)
        yield (
            "grouped_experts.triton:grouped_experts",
            (random(pairs // 2, 256), experts, weights, up, down, "silu", None),
        )


def main(backend: str, arch: str) -> None:
    """Compile for one target."""
    target = GPUTarget(backend, int(arch), 32) if backend == "cuda" else GPUTarget(backend, arch, 64)
    driver.set_active(AbsentDriver(target, "cpu"))
    launch = JITFunction.run

    def compile_only(self: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
        kernel = launch(self, *args, **{**kwargs, "warmup": True})
        binary = kernel.asm["cubin" if backend == "cuda" else "hsaco"]
        assert len(binary) > 0
        assert kernel.metadata.shared <= shared_bytes(), self.__name__
        print(f"{self.__name__}: {len(binary)} bytes, {kernel.metadata.shared} shared", flush=True)
        return kernel

    JITFunction.run = compile_only
    for path, arguments in calls():
        import_path(f"octavo.ops.{path}")(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1].split(":"))
