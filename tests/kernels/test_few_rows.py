"""A whole layer for few rows: at odd shapes and lengths, with NaN in every place that nobody wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.base.facts import RopeFacts
from octavo.nn.rope import rope_table
from octavo.ops.few_rows import LayerWeights, RowPages
from octavo.ops.few_rows.cuda import Cut, blocks_of, cut_of, splits_of
from octavo.ops.few_rows.reference import few_rows
from octavo.ops.rope_write import HeadNorms, Rotation
from tests.kernels.binding import NAN, cases, kernel

# Relative to what the layer adds: five products in a row, each rounded.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1.5e-2, "float16": 2e-3}
LENGTHS = [1, 640, 16, 17, 2049, 64, 65, 333]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    hidden: int
    heads: int
    kv_heads: int
    size: int
    inner: int
    block: int = 16
    norms: bool = True
    bias: bool = False


SHAPES = {
    "as 0.6B": Shape(hidden=1024, heads=16, kv_heads=8, size=128, inner=3072),
    "odd": Shape(hidden=584, heads=7, kv_heads=1, size=64, inner=1544, block=32, bias=True),
    "deep": Shape(hidden=136, heads=2, kv_heads=1, size=64, inner=12296),
    "broad": Shape(hidden=8456, heads=2, kv_heads=1, size=64, inner=264),
    "wide": Shape(hidden=4096, heads=24, kv_heads=3, size=128, inner=4104, block=128, norms=False),
}


def weights(shape: Shape, random: Callable[..., Tensor]) -> LayerWeights:
    def matrix(num_outs: int, num_ins: int) -> tuple[Tensor, Tensor | None]:
        return random(num_outs, num_ins) * num_ins**-0.5, random(num_outs) if shape.bias else None

    norms = HeadNorms(q=1 + random(shape.size) / 4, k=1 + random(shape.size) / 4, eps=1e-6) if shape.norms else None
    return LayerWeights(
        attention_norm=1 + random(shape.hidden) / 4,
        qkv=matrix((shape.heads + 2 * shape.kv_heads) * shape.size, shape.hidden),
        head_norms=norms,
        scale=shape.size**-0.5,
        out=matrix(shape.hidden, shape.heads * shape.size),
        mlp_norm=1 + random(shape.hidden) / 4,
        gate_up=matrix(2 * shape.inner, shape.hidden),
        activation="silu" if shape.bias else "gelu_tanh",
        down=matrix(shape.hidden, shape.inner),
        eps=1e-5,
    )


def widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(map(widened, value))
    if isinstance(value, LayerWeights | HeadNorms | RowPages):
        return replace(value, **{name: widened(getattr(value, name)) for name in value.__slots__})
    return value


def layers() -> Iterator[Any]:
    """Yield (candidate, dtype, shape); the reference has one, of its own size."""
    for case in cases("few_rows"):
        candidate, dtype = case.values
        for name in SHAPES if candidate.startswith("cuda") else ["odd"] if candidate == "torch" else []:
            yield pytest.param(candidate, dtype, name, marks=case.marks)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("candidate", "dtype", "name"), list(layers()))
def test_a_layer(candidate: str, dtype: str, name: str, rows: int) -> None:
    shape, generator = SHAPES[name], torch.Generator().manual_seed(rows)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(getattr(torch, dtype))

    layer, lengths, block = weights(shape, random), LENGTHS[-rows:], shape.block
    columns = max(lengths) // block + 2
    # Two layers in a page, and every second column of the table is another's.
    pool = random(rows * columns + 1, 2, 2, shape.kv_heads, block, shape.size)
    table = torch.randperm(rows * columns, generator=generator).to(torch.int32).view(rows, columns)
    for row, length in enumerate(lengths):
        for column in range((length - 1) // block, columns):
            pool[table[row, column], :, :, :, (length - 1) % block if column == (length - 1) // block else 0 :] = NAN
    rotation = Rotation(
        positions=torch.tensor(lengths) - 1, table=rope_table(RopeFacts(dim=shape.size, theta=5e5), max(lengths))
    )
    pages = RowPages(
        keys=pool[:, 1, 0],
        values=pool[:, 1, 1],
        table=table.repeat_interleave(2, 1)[:, ::2],
        lengths=torch.tensor(lengths, dtype=torch.int32),
        rotation=rotation,
    )
    residual, before = random(rows, shape.hidden), pool.clone()
    expected, exact = residual.double(), widened(pages)
    few_rows(expected, widened(layer), exact)
    added = expected - residual.double()
    kernel("few_rows", candidate, dtype)(residual, layer, pages)
    assert (residual.double() - expected).norm() / added.norm() < TOLERANCE[dtype]
    for found, wanted, old in (
        (pages.keys, exact.keys, before[:, 1, 0]),
        (pages.values, exact.values, before[:, 1, 1]),
    ):
        new = ~wanted.isnan() & old.isnan()
        assert new.sum() == rows * shape.kv_heads * shape.size
        error = (found.double() - wanted)[new].norm() / wanted[new].norm()
        assert error < TOLERANCE[dtype]
        assert torch.equal(found[~new].nan_to_num(nan=9.0), old[~new].nan_to_num(nan=9.0)), "others' tokens stay"
    assert torch.equal(pool[:, 0].nan_to_num(nan=9.0), before[:, 0].nan_to_num(nan=9.0)), "other layers stay"


def test_the_work_is_cut_by_shapes_alone() -> None:
    assert [splits_of(rows, 8, 34_000, 132) for rows in (1, 2, 4, 8)] == [8, 8, 4, 2]
    assert splits_of(1, 1, 34_000, 132) == 8
    assert splits_of(1, 8, 64, 132) == 1
    assert splits_of(8, 32, 34_000, 132) == 1
    assert [blocks_of(tiles, 396) for tiles in (1, 384, 396, 397, 1792)] == [1, 384, 396, 199, 359]
    assert cut_of(1024) == Cut(slices=1, size=1024, chunks=1, pieces=4)
    assert cut_of(4096) == Cut(slices=1, size=4096, chunks=2, pieces=8)
    assert cut_of(14336) == Cut(slices=4, size=3584, chunks=2, pieces=7)


@pytest.mark.parametrize("num_ins", [8, 264, 520, 1544, 2056, 2560, 3072, 4104, 8456, 12296, 28672, 32768])
def test_slices_have_all_inputs(num_ins: int) -> None:
    cut = cut_of(num_ins)
    assert cut.slices * cut.size >= num_ins > (cut.slices - 1) * cut.size
    assert cut.slices <= 8
    assert cut.size % 32 == 0, "copies begin where 16 bytes do"
    assert cut.chunks * cut.pieces * 256 - cut.size >= 0
    assert cut.chunks * cut.pieces <= 16, "registers for more are not there"
