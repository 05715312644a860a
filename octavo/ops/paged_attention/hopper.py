"""Attention of chunks on Hopper (csrc/cuda/prefill.cu), beside Triton's for rows of one token and for what it does not take.

Shapes: T tokens, R rows, H query heads, K key/value heads, G = H / K, D head size, B tokens a block.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from octavo.ops.cuda_module import Launch, TensorMap, address, module, tensor_map
from octavo.ops.paged_attention import Scoring, Span
from octavo.ops.paged_attention.triton import attend

# As in csrc/cuda: query rows of a block, threads, and by head size the bytes of shared memory and the tokens of a tile.
_ROWS, _THREADS = 128, 384
_SHARED, _TILE = {64: 113 << 10, 128: 161 << 10, 256: 193 << 10}, {64: 128, 128: 128, 256: 64}
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "f16"}
_LOG2_E = math.log2(math.e)


class _Prefill(ctypes.Structure):
    _fields_ = (
        *((name, TensorMap) for name in ("q", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("table", "starts", "lengths", "sinks", "out")),
        *((name, ctypes.c_float) for name in ("scale", "softcap")),
        *((name, ctypes.c_int) for name in ("num_tokens", "num_rows", "num_places", "num_heads", "group", "queries")),
        *((name, ctypes.c_int) for name in ("block", "table_row", "table_column", "window", "skip_ones")),
        ("_pad", ctypes.c_int * 9),
    )


def paged_attention(
    q: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    span: Span | None = None,
) -> Tensor:
    """See `PagedAttention`."""
    (_, num_heads, size), (_, num_kv_heads, block, _) = q.shape, key_pages.shape
    group = num_heads // num_kv_heads

    def chunks(out: Tensor, skip_ones: bool) -> None:
        queries = _ROWS // group
        num_places = len(q) // queries + len(lengths) + 1
        box, sinks = (1, 1, min(block, _TILE[size]), 64), scoring.sinks
        parameters = _Prefill(
            q=tensor_map(q, (queries, group, 64)),
            keys=tensor_map(key_pages, box),
            values=tensor_map(value_pages, box),
            table=address(table),
            starts=address(query_starts),
            lengths=address(lengths),
            sinks=address(None if sinks is None else sinks.to(q.dtype)),
            out=address(out),
            scale=scoring.scale * _LOG2_E * (2 / scoring.softcap if scoring.softcap else 1),
            softcap=(scoring.softcap or 0) * _LOG2_E,
            num_tokens=len(q),
            num_rows=len(lengths),
            num_places=num_places,
            num_heads=num_kv_heads,
            group=group,
            queries=queries,
            block=block,
            table_row=table.stride(0),
            table_column=table.stride(1),
            window=scoring.window or 0,
            skip_ones=skip_ones,
        )
        prefill, capped = module("prefill"), "_capped" if scoring.softcap else ""
        grid = (min(prefill.num_cores, num_places * num_kv_heads), 1, 1)
        launch = Launch(grid=grid, threads=_THREADS, shared=_SHARED[size])
        prefill.launch(f"prefill_{size}{capped}_{_SUFFIX[q.dtype]}", parameters, launch)

    takes = size in _TILE and group <= _ROWS and scoring.slopes is None
    span = None if scoring.window is not None or scoring.slopes is not None else span
    return attend(
        q,
        key_pages,
        value_pages,
        table,
        query_starts,
        lengths,
        scoring,
        span=span,
        chunks=chunks if takes else None,
    )
