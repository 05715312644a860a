"""A decoder layer in five CUDA kernels (csrc/cuda): each begins to load its weights while the one before still runs.

Shapes: T rows, N hidden features, H query heads, K key/value heads, D head size, I intermediate features.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.base.intmath import ceil_div
from octavo.ops.cuda_module import Launch, address, module
from octavo.ops.few_rows import LayerWeights, Matrix, Ranks, RowPages

# As in csrc/cuda: warps of a product, stages that it has at most, pieces that kernels are made for by chunks of a slice; threads
# of attention, tokens that a block of it takes at once, and how many times it loads ahead.
_WARPS, _MOST_STAGES, _PIECES = 8, 12, {1: (2, 4, 6, 8), 2: (5, 6, 7, 8)}
_ATTENTION_THREADS, _TILE, _STAGES = 128, 64, 3
# Inputs that a block has registers for, and bytes of shared memory, so that two kernels fit beside each other.
_MOST_SLICE, _NORM_SHARED, _ADD_SHARED = 4096, 103 * 1024, 107 * 1024
# One cluster adds up all splits: parts that the output product adds up cost it 2 microseconds (docs/log.md).
_MOST_SPLITS = 8
_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "f16"}
_LOG2_E = math.log2(math.e)


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "weight", "bias", "out")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("rows", "num_ins", "num_outs", "activation", "size", "stages")),
    )


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "q_norm", "k_norm", "angles", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("table", "lengths", "out")),
        *((name, ctypes.c_longlong) for name in ("page_stride", "head_stride", "offset_stride")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *((name, ctypes.c_int) for name in ("qkv_row", "group", "block", "table_row", "table_column")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How inputs are cut. slices: one for each block of a cluster. size: of a slice. chunks: those of a slice, a stage has one.

    pieces: of 32 inputs that a warp has of a chunk.
    """

    slices: int
    size: int
    chunks: int
    pieces: int


def cut_of(num_ins: int) -> Cut:
    """Choose how inputs are cut: what a block has of all rows stays in its registers."""
    slices = 1
    while num_ins > slices * _MOST_SLICE:
        slices *= 2
    size = ceil_div(num_ins, slices * 32) * 32
    chunks = 1 if size <= _MOST_SLICE // 2 else 2
    pieces = ceil_div(size, chunks * _WARPS * 32)
    return Cut(slices=slices, size=size, chunks=chunks, pieces=next(made for made in _PIECES[chunks] if made >= pieces))


def blocks_of(num_tiles: int, most: int) -> int:
    """Return how many blocks share the tiles, so that each has equally many, or one more."""
    return ceil_div(num_tiles, ceil_div(num_tiles, most))


def splits_of(num_rows: int, num_kv_heads: int, capacity: int, num_cores: int) -> int:
    """Return how many blocks share a row's keys, a power of two: as many as fill the multiprocessors, with keys enough for each.

    capacity: keys a row can have: the launch must not depend on lengths.
    """
    wanted = min(num_cores // (num_rows * num_kv_heads), ceil_div(capacity, _TILE), _MOST_SPLITS)
    return 1 << max(wanted, 1).bit_length() - 1


def few_rows(residual: Tensor, layer: LayerWeights, pages: RowPages, ranks: Ranks | None = None) -> None:
    """See `FewRows`."""
    assert residual.is_contiguous()
    if len(residual) == 0:
        return
    part = residual if ranks is None else ranks.part_of(residual)
    qkv = _of_normalized(residual, layer.attention_norm, layer.qkv, layer)
    _multiply("product_add", _Product(), _attend(qkv, layer, pages), layer.out, part)
    if ranks is not None:
        ranks.sum(part, residual)
    inner = _of_normalized(residual, layer.mlp_norm, layer.gate_up, layer, gated=True)
    _multiply("product_add", _Product(), inner, layer.down, part)
    if ranks is not None:
        ranks.sum(part, residual)


def _of_normalized(
    residual: Tensor, norm: Tensor, matrix: Matrix, layer: LayerWeights, *, gated: bool = False
) -> Tensor:
    """Launch the product of the residual stream, normalized; return [T, out], or [T, I] behind a gated activation."""
    shape = (len(residual), len(matrix[0]) // (1 + gated))
    out = torch.empty(shape, dtype=residual.dtype, device=residual.device)
    parameters = _Product(norm=address(norm), eps=layer.eps, activation=_ACTIVATIONS[layer.activation])
    _multiply("norm_gate" if gated else "norm_product", parameters, residual, matrix, out)
    return out


def _multiply(kernel: str, parameters: _Product, x: Tensor, matrix: Matrix, out: Tensor) -> None:
    """Launch a product of x [T, in] with the rest of its parameters. out: overwritten, or what `product_add` adds to."""
    (num_rows, num_ins), num_outs, products = x.shape, out.shape[1], module("products")
    cut, halves, adds = cut_of(num_ins), 1 + (kernel == "norm_gate"), kernel == "product_add"
    groups = blocks_of(num_outs // 8, products.num_cores // cut.slices)
    own = ceil_div(ceil_div(num_outs // 8, groups), cut.slices)
    beside = cut.slices * own * halves * 256 + (0 if adds else cut.size * 2)
    stage = 8 * (_WARPS * cut.pieces * 64 + 64)
    room = (_ADD_SHARED if adds else _NORM_SHARED) - beside
    stages = max(min(room // stage, ceil_div(num_outs // 8, groups) * halves * cut.chunks, _MOST_STAGES), 1)
    parameters.x, parameters.weight, parameters.bias, parameters.out = map(address, (x, *matrix, out))
    parameters.rows, parameters.num_ins, parameters.num_outs = num_rows, num_ins, num_outs
    parameters.size, parameters.stages = cut.size, stages
    shape = f"{cut.pieces}_{cut.chunks}_{_SUFFIX[x.dtype]}"
    launch = Launch(
        grid=(groups * cut.slices, 1, 1), threads=32 * _WARPS, shared=stages * stage + beside, cluster=cut.slices
    )
    products.launch(f"{kernel}_{shape}", parameters, launch)


def _attend(qkv: Tensor, layer: LayerWeights, pages: RowPages) -> Tensor:
    """Launch attention; return [T, H * D]."""
    attention, num_rows, keys, norms = module("attention"), len(qkv), pages.keys, layer.head_norms
    _, num_kv_heads, block, size = keys.shape
    num_heads, angles = qkv.shape[1] // size - 2 * num_kv_heads, pages.rotation.table
    assert keys.stride() == pages.values.stride() and keys.stride(3) == 1 and angles.is_contiguous()
    splits = splits_of(num_rows, num_kv_heads, pages.table.shape[1] * block, attention.num_cores)
    out = torch.empty((num_rows, num_heads * size), dtype=qkv.dtype, device=qkv.device)
    parameters = _Attention(
        qkv=address(qkv),
        q_norm=address(norms and norms.q),
        k_norm=address(norms and norms.k),
        angles=address(angles),
        keys=address(keys),
        values=address(pages.values),
        table=address(pages.table),
        lengths=address(pages.lengths),
        out=address(out),
        page_stride=keys.stride(0),
        head_stride=keys.stride(1),
        offset_stride=keys.stride(2),
        eps=0.0 if norms is None else norms.eps,
        scale=layer.scale * _LOG2_E,
        qkv_row=qkv.shape[1],
        group=num_heads // num_kv_heads,
        block=block,
        table_row=pages.table.stride(0),
        table_column=pages.table.stride(1),
    )
    shared = _STAGES * 2 * _TILE * size * qkv.itemsize
    launch = Launch(grid=(splits, num_kv_heads, num_rows), threads=_ATTENTION_THREADS, shared=shared, cluster=splits)
    attention.launch(f"attention_{size}_{_SUFFIX[qkv.dtype]}", parameters, launch)
    return out
