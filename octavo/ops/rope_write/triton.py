"""Normalize, rotate and write in one Triton kernel: a program takes one token and a few heads of q, of k or of v.

Shapes: T tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.rope.triton import heads_of, turned
from octavo.ops.rope_write import HeadNorms, Rotation


@triton.jit(do_not_specialize_on_alignment=["pages_ptr"])
def _rope_write(
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    k_weight_ptr,
    eps,
    positions_ptr,
    table_ptr,
    keys_ptr,
    values_ptr,
    pages_ptr,
    offsets_ptr,
    num_heads,
    num_key_heads,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    page_stride,
    head_stride,
    offset_stride,
    pages_stride,
    NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SIZE: tl.constexpr,
    ROTATED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_tiles, num_key_tiles = tl.cdiv(num_heads, HEADS), tl.cdiv(num_key_heads, HEADS)
    angles_ptr = table_ptr + tl.load(positions_ptr + token) * ROTATED
    heads = tl.arange(0, HEADS)[:, None]
    if tile < num_tiles:
        heads += tile * HEADS
        at = q_ptr + token * q_token + heads * q_head
        turned(
            at, at, angles_ptr, q_weight_ptr, eps, heads < num_heads,
            SIZE, ROTATED, INTERLEAVED, NORM, False, HALF, REST,
        )  # fmt: skip
    else:
        place = tl.load(pages_ptr + token * pages_stride) * page_stride + tl.load(offsets_ptr + token) * offset_stride
        if tile < num_tiles + num_key_tiles:
            heads += (tile - num_tiles) * HEADS
            turned(
                k_ptr + token * k_token + heads * k_head, keys_ptr + place + heads * head_stride,
                angles_ptr, k_weight_ptr, eps, heads < num_key_heads,
                SIZE, ROTATED, INTERLEAVED, NORM, True, HALF, REST,
            )  # fmt: skip
        else:
            heads += (tile - num_tiles - num_key_tiles) * HEADS
            columns = tl.arange(0, COLUMNS)[None, :]
            here = (heads < num_key_heads) & (columns < SIZE)
            x = tl.load(v_ptr + token * v_token + heads * v_head + columns, mask=here)
            to = values_ptr + place + heads * head_stride + columns
            tl.store(to, x.to(values_ptr.dtype.element_ty), mask=here)


def rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: HeadNorms | None,
    rotation: Rotation,
    planes: tuple[Tensor, Tensor],
    pages: Tensor,
    offsets: Tensor,
) -> Tensor:
    """See `RopeWrite`; q is overwritten and returned."""
    num_tokens, num_heads, size = q.shape
    num_key_heads, rotated, (keys, values) = k.shape[1], rotation.table.shape[1], planes
    if num_tokens == 0:
        return q
    assert q.stride(2) == k.stride(2) == v.stride(2) == keys.stride(3) == offsets.stride(0) == 1
    assert keys.stride() == values.stride() and rotation.table.is_contiguous()
    heads = heads_of(size, num_heads)
    _rope_write[(num_tokens, triton.cdiv(num_heads, heads) + 2 * triton.cdiv(num_key_heads, heads))](
        q,
        k,
        v,
        norms and norms.q,
        norms and norms.k,
        0.0 if norms is None else norms.eps,
        rotation.positions,
        rotation.table,
        keys,
        values,
        pages,
        offsets,
        num_heads,
        num_key_heads,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *keys.stride()[:3],
        pages.stride(0),
        NORM=norms is not None,
        INTERLEAVED=rotation.interleaved,
        SIZE=size,
        ROTATED=rotated,
        HEADS=heads,
        HALF=triton.next_power_of_2(rotated // 2),
        REST=triton.next_power_of_2(max(size - rotated, 1)),
        COLUMNS=triton.next_power_of_2(size),
        num_warps=4,
    )
    return q
