"""A decoder layer in five CUDA kernels (csrc/cuda): each begins to load its weights while the one before still runs.

Shapes: T rows, N hidden features, H query heads, K key/value heads, D head size, I intermediate features, S splits of keys,
C clusters of them.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.base.intmath import ceil_div
from octavo.ops.cuda_module import CudaModule, Launch, address, module
from octavo.ops.few_rows import LayerWeights
from octavo.ops.rope_write import Rotation

# Threads, tokens that a block of attention takes at once, stages that it loads ahead: as in csrc/cuda.
_THREADS, _ATTENTION_THREADS, _TILE, _STAGES, _PAD = 256, 128, 64, 3, 32
_MOST_SPLITS, _MOST_CLUSTER = 32, 8
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How a product is cut: outputs of a tile in eights, and the kernel that takes as much of the inputs at a time."""

    kernel: str
    eights: int


def tiles_of(num_ins: int) -> Tiles:
    """Choose for a product that adds to the residual stream: all inputs at a time while they fit into registers."""
    if num_ins <= 2048:
        return Tiles(kernel="", eights=1)
    return Tiles(kernel="_long", eights=1) if num_ins <= 3072 else Tiles(kernel="_wide", eights=2)


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


def few_rows(
    residual: Tensor,
    layer: LayerWeights,
    rotation: Rotation,
    planes: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
) -> None:
    """See `FewRows`."""
    products, num_rows = module("products"), len(residual)
    if num_rows == 0:
        return
    assert residual.is_contiguous() and num_rows <= 8
    qkv = _empty(residual, num_rows, len(layer.qkv))
    _norm_product(products, "norm_product", residual, layer.attention_norm, layer.qkv, layer.qkv_bias, layer, qkv)
    attended, lses = _attend(qkv, layer, rotation, planes, table, lengths)
    _add_product(products, attended, lses, layer.out, layer.out_bias, residual)
    inner = _empty(residual, num_rows, len(layer.gate_up) // 2)
    _norm_product(products, "norm_gate", residual, layer.mlp_norm, layer.gate_up, layer.gate_up_bias, layer, inner)
    _add_product(products, inner, None, layer.down, layer.down_bias, residual)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _norm_product(
    products: CudaModule,
    kernel: str,
    residual: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    layer: LayerWeights,
    out: Tensor,
) -> None:
    """Launch the product of the normalized residual stream, for `norm_gate` with the gated activation behind."""
    num_rows, num_ins = residual.shape
    width = 8 if kernel == "norm_gate" else 16
    parameters = _Product(
        x=address(residual),
        norm=address(norm),
        weight=address(weight),
        bias=address(bias),
        out=address(out),
        eps=layer.eps,
        rows=num_rows,
        num_ins=num_ins,
        num_outs=out.shape[1],
        activation=_ACTIVATIONS[layer.activation],
    )
    blocks = blocks_of(ceil_div(out.shape[1], width), products.num_cores, 3)
    shared = (num_rows * (num_ins + _PAD) + num_ins) * 2
    launch = Launch(grid=(blocks, 1, 1), threads=_THREADS, shared=shared)
    products.launch(f"{kernel}_{_SUFFIX[residual.dtype]}", parameters, launch)


def _add_product(
    products: CudaModule, x: Tensor, lses: Tensor | None, weight: Tensor, bias: Tensor | None, residual: Tensor
) -> None:
    """Launch the product that is added to the residual stream. x: [T, in], or parts [T, H, C, D] with lses [T, H, C]."""
    (num_outs, num_ins), num_rows = weight.shape, len(residual)
    tiles = tiles_of(num_ins)
    parameters = _Product(
        x=address(x),
        lses=address(lses),
        weight=address(weight),
        bias=address(bias),
        out=address(residual),
        rows=num_rows,
        num_ins=num_ins,
        num_outs=num_outs,
    )
    kernel, shared = f"product_add{tiles.kernel}", 0
    if lses is not None:
        tiles = tiles if num_ins <= 2048 else Tiles(kernel="_wide", eights=2)
        kernel, shared = f"parts_add{tiles.kernel}", num_rows * (num_ins + _PAD) * 2
        parameters.head, parameters.parts = x.shape[3], x.shape[2]
    blocks = blocks_of(ceil_div(num_outs, 8 * tiles.eights), products.num_cores, 3 if tiles.eights == 2 else 2)
    launch = Launch(grid=(blocks, 1, 1), threads=_THREADS, shared=shared)
    products.launch(f"{kernel}_{_SUFFIX[residual.dtype]}", parameters, launch)


def _attend(
    qkv: Tensor,
    layer: LayerWeights,
    rotation: Rotation,
    planes: tuple[Tensor, Tensor],
    table: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Launch attention; return [T, H * D], or its parts, float32 [T, H, C, D], with their log-sum-exps [T, H, C]."""
    attention, num_rows, (keys, values) = module("attention"), len(qkv), planes
    _, num_kv_heads, block, size = keys.shape
    assert keys.stride() == values.stride() and keys.stride(3) == 1 and rotation.table.is_contiguous()
    capacity = table.shape[1] * block
    splits, cluster = splits_of(num_rows, num_kv_heads, capacity, attention.num_cores, attention.clusters)
    out, lses = _empty(qkv, num_rows, layer.num_heads * size), None
    if splits > cluster:
        shape = (num_rows, layer.num_heads, splits // cluster)
        out = torch.empty((*shape, size), dtype=torch.float32, device=qkv.device)
        lses = torch.empty(shape, dtype=torch.float32, device=qkv.device)
    norms = layer.head_norms
    parameters = _Attention(
        qkv=address(qkv),
        q_norm=address(norms and norms.q),
        k_norm=address(norms and norms.k),
        angles=address(rotation.table),
        keys=address(keys),
        values=address(values),
        table=address(table),
        lengths=address(lengths),
        out=address(out),
        parts=address(out),
        lses=address(lses),
        page_stride=keys.stride(0),
        head_stride=keys.stride(1),
        offset_stride=keys.stride(2),
        eps=0.0 if norms is None else norms.eps,
        scale=layer.scale * _LOG2_E,
        qkv_row=qkv.shape[1],
        group=layer.num_heads // num_kv_heads,
        block=block,
        table_row=table.stride(0),
        table_column=table.stride(1),
    )
    launch = Launch(
        grid=(splits, num_kv_heads, num_rows),
        threads=_ATTENTION_THREADS,
        shared=_STAGES * 2 * _TILE * size * 2,
        cluster=cluster,
    )
    attention.launch(f"attention_{size}_{_SUFFIX[qkv.dtype]}", parameters, launch)
    return out, lses
