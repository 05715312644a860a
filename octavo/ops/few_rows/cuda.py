"""A decoder layer in five CUDA kernels (csrc/cuda): each begins to load its weights while the one before still runs.

Shapes: T rows, N hidden features, H query heads, K key/value heads, D head size, I intermediate features, S splits of keys,
C clusters of them.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from octavo.base.intmath import ceil_div
from octavo.ops.cuda_module import Launch, address, module
from octavo.ops.few_rows import LayerWeights, Matrix, Ranks, RowPages

# As in csrc/cuda: threads, elements between rows in shared memory, tokens that a block of attention takes at once, and how
# many times it loads ahead.
_THREADS, _PAD, _ATTENTION_THREADS, _TILE, _STAGES = 256, 32, 128, 64, 3
# One cluster adds up all splits: parts that the output product adds up cost it 2 microseconds (docs/log.md).
_MOST_SPLITS, _MOST_CLUSTER = 8, 8
_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "f16"}
_LOG2_E = math.log2(math.e)


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "lses", "norm", "weight", "bias", "out")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("rows", "num_ins", "num_outs", "head", "parts", "activation")),
    )


class _Attention(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "q_norm", "k_norm", "angles", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("table", "lengths", "out", "parts", "lses")),
        *((name, ctypes.c_longlong) for name in ("page_stride", "head_stride", "offset_stride")),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *((name, ctypes.c_int) for name in ("qkv_row", "group", "block", "table_row", "table_column")),
    )


def eights_of(num_ins: int) -> tuple[str, int]:
    """Choose (kernel, eights of outputs of a tile) for what is added: all inputs at once while they fit into registers."""
    return ("", 1) if num_ins <= 2048 else ("_long", 1) if num_ins <= 3072 else ("_wide", 2)


def blocks_of(num_tiles: int, num_cores: int, of_a_core: int) -> int:
    """Return how many blocks share the tiles, so that each has equally many, or one more."""
    return ceil_div(num_tiles, ceil_div(num_tiles, num_cores * of_a_core))


def splits_of(num_rows: int, num_kv_heads: int, capacity: int, num_cores: int, clusters: bool) -> tuple[int, int]:
    """Return (splits, splits of a cluster), powers of two: as many blocks as multiprocessors, with keys enough for each.

    capacity: keys a row can have: the launch must not depend on lengths.
    """
    wanted = min(num_cores // (num_rows * num_kv_heads), ceil_div(capacity, _TILE), _MOST_SPLITS)
    splits = 1 << max(wanted, 1).bit_length() - 1
    return splits, min(splits, _MOST_CLUSTER) if clusters else 1


def few_rows(residual: Tensor, layer: LayerWeights, pages: RowPages, ranks: Ranks | None = None) -> None:
    """See `FewRows`."""
    assert residual.is_contiguous()
    if len(residual) == 0:
        return
    part = residual if ranks is None else ranks.part_of(residual)
    qkv = _of_normalized(residual, layer.attention_norm, layer.qkv, layer)
    _add(*_attend(qkv, layer, pages), layer.out, part)
    if ranks is not None:
        ranks.sum(part, residual)
    inner = _of_normalized(residual, layer.mlp_norm, layer.gate_up, layer, gated=True)
    _add(inner, None, layer.down, part)
    if ranks is not None:
        ranks.sum(part, residual)


def _of_normalized(
    residual: Tensor, norm: Tensor, matrix: Matrix, layer: LayerWeights, *, gated: bool = False
) -> Tensor:
    """Launch the product of the residual stream, normalized; return [T, out], or [T, I] behind a gated activation."""
    (num_rows, num_ins), num_outs = residual.shape, len(matrix[0]) // (1 + gated)
    out = torch.empty((num_rows, num_outs), dtype=residual.dtype, device=residual.device)
    parameters = _Product(
        x=address(residual),
        norm=address(norm),
        weight=address(matrix[0]),
        bias=address(matrix[1]),
        out=address(out),
        eps=layer.eps,
        rows=num_rows,
        num_ins=num_ins,
        num_outs=num_outs,
        activation=_ACTIVATIONS[layer.activation],
    )
    num_tiles, shared = ceil_div(num_outs, 8 if gated else 16), (num_rows * (num_ins + _PAD) + num_ins) * 2
    _launch(f"norm_{'gate' if gated else 'product'}", parameters, residual, num_tiles, shared, of_a_core=3)
    return out


def _add(x: Tensor, lses: Tensor | None, matrix: Matrix, residual: Tensor) -> None:
    """Launch the product that is added to the residual stream. x: [T, in], or parts [T, H, C, D] with lses [T, H, C]."""
    num_outs, num_ins = matrix[0].shape
    parameters = _Product(
        x=address(x),
        lses=address(lses),
        weight=address(matrix[0]),
        bias=address(matrix[1]),
        out=address(residual),
        rows=len(residual),
        num_ins=num_ins,
        num_outs=num_outs,
    )
    (kernel, eights), name, shared = eights_of(num_ins), "product_add", 0
    if lses is not None:
        name, shared = "parts_add", len(residual) * (num_ins + _PAD) * 2
        parameters.head, parameters.parts = x.shape[3], x.shape[2]
    num_tiles, of_a_core = ceil_div(num_outs, 8 * eights), 3 if eights == 2 else 2
    _launch(name + kernel, parameters, residual, num_tiles, shared, of_a_core=of_a_core)


def _launch(
    kernel: str, parameters: _Product, residual: Tensor, num_tiles: int, shared: int, *, of_a_core: int
) -> None:
    products = module("products")
    blocks = blocks_of(num_tiles, products.num_cores, of_a_core)
    launch = Launch(grid=(blocks, 1, 1), threads=_THREADS, shared=shared)
    products.launch(f"{kernel}_{_SUFFIX[residual.dtype]}", parameters, launch)


def _attend(qkv: Tensor, layer: LayerWeights, pages: RowPages) -> tuple[Tensor, Tensor | None]:
    """Launch attention; return [T, H * D], or its parts, float32 [T, H, C, D], with their log-sum-exps [T, H, C]."""
    attention, num_rows, keys, norms = module("attention"), len(qkv), pages.keys, layer.head_norms
    _, num_kv_heads, block, size = keys.shape
    num_heads, angles = qkv.shape[1] // size - 2 * num_kv_heads, pages.rotation.table
    assert keys.stride() == pages.values.stride() and keys.stride(3) == 1 and angles.is_contiguous()
    capacity = pages.table.shape[1] * block
    splits, cluster = splits_of(num_rows, num_kv_heads, capacity, attention.num_cores, attention.clusters)
    out, lses = torch.empty((num_rows, num_heads * size), dtype=qkv.dtype, device=qkv.device), None
    if splits > cluster:
        shape = (num_rows, num_heads, splits // cluster)
        out = torch.empty((*shape, size), dtype=torch.float32, device=qkv.device)
        lses = torch.empty(shape, dtype=torch.float32, device=qkv.device)
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
        parts=address(out),
        lses=address(lses),
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
    grid = (splits, num_kv_heads, num_rows)
    launch = Launch(grid=grid, threads=_ATTENTION_THREADS, shared=shared, cluster=cluster)
    attention.launch(f"attention_{size}_{_SUFFIX[qkv.dtype]}", parameters, launch)
    return out, lses
