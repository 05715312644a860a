"""Rotation alone, and with norms and page writes, in Triton: a program takes one token and a few heads of q, of k or of v.

Shapes: T tokens, H query heads, K key/value heads, D head size, R <= D rotated features.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.rope_write import HeadNorms, Rotation

# Features of a program.
TILE = 2048


@triton.jit
def turned(
    x_ptr,
    out_ptr,
    angles_ptr,
    weight_ptr,
    eps,
    here,
    SIZE: tl.constexpr,
    ROTATED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
    MOVES: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Normalize heads if NORM, rotate them and store them.

    x_ptr, out_ptr: [heads, 1], where each begins; here: [heads, 1], which there are. angles_ptr: the cosines, then sines, of
    the token. MOVES: they are stored elsewhere, so that features that do not turn have to be stored too. HALF, REST: powers
    of two that R / 2 and D - R fit in.
    """
    pairs, rest = tl.arange(0, HALF)[None, :], ROTATED + tl.arange(0, REST)[None, :]
    turning, staying = here & (pairs < ROTATED // 2), here & (rest < SIZE)
    first_at, second_at = (2 * pairs, 2 * pairs + 1) if INTERLEAVED else (pairs, pairs + ROTATED // 2)
    first = tl.load(x_ptr + first_at, mask=turning, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + second_at, mask=turning, other=0.0).to(tl.float32)
    moves_rest: tl.constexpr = (NORM or MOVES) and SIZE > ROTATED
    if moves_rest:
        kept = tl.load(x_ptr + rest, mask=staying, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, 1, keep_dims=True)
        if moves_rest:
            squares += tl.sum(kept * kept, 1, keep_dims=True)
        scale = tl.rsqrt(squares / SIZE + eps)
        first *= scale * tl.load(weight_ptr + first_at, mask=pairs < ROTATED // 2, other=0.0).to(tl.float32)
        second *= scale * tl.load(weight_ptr + second_at, mask=pairs < ROTATED // 2, other=0.0).to(tl.float32)
        if moves_rest:
            kept *= scale * tl.load(weight_ptr + rest, mask=rest < SIZE, other=0.0).to(tl.float32)
    cos = tl.load(angles_ptr + pairs, mask=pairs < ROTATED // 2, other=0.0)
    sin = tl.load(angles_ptr + ROTATED // 2 + pairs, mask=pairs < ROTATED // 2, other=0.0)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out_ptr + first_at, (first * cos - second * sin).to(dtype), mask=turning)
    tl.store(out_ptr + second_at, (second * cos + first * sin).to(dtype), mask=turning)
    if moves_rest:
        tl.store(out_ptr + rest, kept.to(dtype), mask=staying)


@triton.jit
def _rope(
    q_ptr,
    k_ptr,
    positions_ptr,
    table_ptr,
    num_heads,
    num_key_heads,
    q_token,
    q_head,
    k_token,
    k_head,
    SIZE: tl.constexpr,
    ROTATED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    angles_ptr = table_ptr + tl.load(positions_ptr + token) * ROTATED
    num_tiles = tl.cdiv(num_heads, HEADS)
    if tile < num_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)[:, None]
        at = q_ptr + token * q_token + heads * q_head
        turned(at, at, angles_ptr, at, 0.0, heads < num_heads, SIZE, ROTATED, INTERLEAVED, False, False, HALF, 1)
    else:
        heads = (tile - num_tiles) * HEADS + tl.arange(0, HEADS)[:, None]
        at = k_ptr + token * k_token + heads * k_head
        turned(at, at, angles_ptr, at, 0.0, heads < num_key_heads, SIZE, ROTATED, INTERLEAVED, False, False, HALF, 1)


def rope(q: Tensor, k: Tensor, positions: Tensor, table: Tensor, interleaved: bool = False) -> None:
    """See `Rope`."""
    num_tokens, num_heads, size = q.shape
    num_key_heads, rotated = k.shape[1], table.shape[1]
    assert q.stride(2) == 1 and k.stride(2) == 1 and table.is_contiguous()
    heads = heads_of(size, max(num_heads, num_key_heads))
    num_tiles = triton.cdiv(num_heads, heads) + triton.cdiv(num_key_heads, heads)
    if num_tokens == 0 or num_tiles == 0:
        return
    _rope[(num_tokens, num_tiles)](
        q,
        k,
        positions,
        table,
        num_heads,
        num_key_heads,
        *q.stride()[:2],
        *k.stride()[:2],
        SIZE=size,
        ROTATED=rotated,
        INTERLEAVED=interleaved,
        HEADS=heads,
        HALF=triton.next_power_of_2(rotated // 2),
        num_warps=4,
    )


def heads_of(size: int, num_heads: int) -> int:
    """Return how many heads of this size a program takes."""
    return min(max(1, TILE // triton.next_power_of_2(size)), triton.next_power_of_2(num_heads))


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
