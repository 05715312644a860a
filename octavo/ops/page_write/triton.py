"""Page writes and copies in Triton. Shapes: T tokens, K key/value heads, D head size, N bytes a page, C copies."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Features of a program that writes, words of one that copies.
_TILE, _WORDS = 2048, 4096


@triton.jit(do_not_specialize_on_alignment=["pages_ptr"])
def _write(
    key_ptr,
    value_ptr,
    key_pages_ptr,
    value_pages_ptr,
    pages_ptr,
    offsets_ptr,
    num_heads,
    key_token,
    key_head,
    value_token,
    value_head,
    page_stride,
    head_stride,
    offset_stride,
    pages_stride,
    SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads, columns = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None], tl.arange(0, COLUMNS)[None, :]
    here = (heads < num_heads) & (columns < SIZE)
    page, offset = tl.load(pages_ptr + token * pages_stride), tl.load(offsets_ptr + token)
    to = page * page_stride + heads * head_stride + offset * offset_stride + columns
    if tl.program_id(2) == 0:
        x = tl.load(key_ptr + token * key_token + heads * key_head + columns, mask=here)
        tl.store(key_pages_ptr + to, x.to(key_pages_ptr.dtype.element_ty), mask=here)
    else:
        x = tl.load(value_ptr + token * value_token + heads * value_head + columns, mask=here)
        tl.store(value_pages_ptr + to, x.to(value_pages_ptr.dtype.element_ty), mask=here)


def page_write(
    key: Tensor, value: Tensor, key_pages: Tensor, value_pages: Tensor, pages: Tensor, offsets: Tensor
) -> None:
    """See `PageWrite`."""
    _launch(key, value, key_pages, value_pages, pages, offsets, num_planes=2)


def plane_write(x: Tensor, plane: Tensor, pages: Tensor, offsets: Tensor) -> None:
    """See `PlaneWrite`."""
    _launch(x, x, plane, plane, pages, offsets, num_planes=1)


def _launch(
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    pages: Tensor,
    offsets: Tensor,
    *,
    num_planes: int,
) -> None:
    num_tokens, num_heads, size = key.shape
    if num_tokens == 0:
        return
    assert key.stride(2) == value.stride(2) == key_pages.stride(3) == offsets.stride(0) == 1
    assert key_pages.stride() == value_pages.stride() and key.shape == value.shape
    columns = triton.next_power_of_2(size)
    heads = min(max(1, _TILE // columns), triton.next_power_of_2(num_heads))
    _write[(num_tokens, triton.cdiv(num_heads, heads), num_planes)](
        key,
        value,
        key_pages,
        value_pages,
        pages,
        offsets,
        num_heads,
        *key.stride()[:2],
        *value.stride()[:2],
        *key_pages.stride()[:3],
        pages.stride(0),
        SIZE=size,
        HEADS=heads,
        COLUMNS=columns,
        num_warps=4,
    )


@triton.jit
def _copy(pool_ptr, sources_ptr, targets_ptr, page_stride, num_words, WORDS: tl.constexpr):
    copy = tl.program_id(0)
    source, target = tl.load(sources_ptr + copy) * page_stride, tl.load(targets_ptr + copy) * page_stride
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    x = tl.load(pool_ptr + source + words, mask=words < num_words)
    tl.store(pool_ptr + target + words, x, mask=words < num_words)


def page_copy(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `PageCopy`."""
    if len(sources) == 0:
        return
    words = pool.view(torch.int64) if pool.shape[1] % 8 == 0 else pool
    num_words = words.shape[1]
    assert words.stride(1) == sources.stride(0) == targets.stride(0) == 1
    _copy[(len(sources), triton.cdiv(num_words, _WORDS))](
        words, sources, targets, words.stride(0), num_words, WORDS=_WORDS, num_warps=8
    )
