"""Causal convolutions in Triton: a program takes a few tokens of one row and some channels.

Shapes: T tokens, R rows, C channels, W taps, S pages that a state spans, G shares of a state's channels in a page.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.paged_attention.triton_pieces import row_of
from octavo.ops.states import StatePages

_TOKENS, _CHANNELS = 16, 128


@triton.jit
def _kept_at(
    channels, back, pages_ptr, page_stride, share_stride, SHARES: tl.constexpr, EACH: tl.constexpr, W: tl.constexpr
):
    """Return where the input `back` tokens before the row's first new one is kept: 1 is the newest."""
    shares = channels // EACH
    pages = tl.load(pages_ptr + shares // SHARES)
    return pages * page_stride + shares % SHARES * share_stride + channels % EACH * (W - 1) + (W - 1 - back)


@triton.jit(do_not_specialize=["num_tokens", "num_rows"])
def _convolve(
    x_ptr,
    weight_ptr,
    inputs_ptr,
    before_ptr,
    after_ptr,
    fresh_ptr,
    starts_ptr,
    out_ptr,
    num_tokens,
    num_rows,
    num_channels,
    x_token,
    page_stride,
    share_stride,
    pages_row,
    SHARES: tl.constexpr,
    EACH: tl.constexpr,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    place = tl.program_id(0)
    row = row_of(starts_ptr, place, num_rows, TOKENS, True)
    first, stop = tl.load(starts_ptr + row), num_tokens
    if row < num_rows:
        stop = tl.load(starts_ptr + row + 1)
    block = place - first // TOKENS - row
    begin = first + block * TOKENS
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tokens = begin + tl.arange(0, TOKENS)
    here = channels < num_channels
    outs = (tokens < stop)[:, None] & here[None, :]
    out_at = out_ptr + tokens[:, None].to(tl.int64) * num_channels + channels[None, :]
    if row == num_rows:
        tl.store(out_at, tl.zeros([TOKENS, CHANNELS], out_ptr.dtype.element_ty), mask=outs)
        return
    going_on = (channels * 0 + tl.load(fresh_ptr + row).to(tl.int32) == 0)[None, :]
    before_ptr += row * pages_row
    after_ptr += row * pages_row
    sums = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for tap in tl.static_range(W):
        seen = tokens - (W - 1 - tap)
        new = tl.load(
            x_ptr + seen[:, None].to(tl.int64) * x_token + channels[None, :],
            mask=outs & (seen >= first)[:, None],
            other=0.0,
        ).to(tl.float32)
        if block == 0:
            old_at = _kept_at(
                channels[None, :], (first - seen)[:, None], before_ptr, page_stride, share_stride, SHARES, EACH, W
            )
            old = outs & (seen < first)[:, None] & going_on
            new += tl.load(inputs_ptr + old_at, mask=old, other=0.0).to(tl.float32)
        sums += new * tl.load(weight_ptr + channels * W + tap, mask=here, other=0.0).to(tl.float32)[None, :]
    tl.store(out_at, (sums / (1.0 + tl.exp(-sums))).to(out_ptr.dtype.element_ty), mask=outs)
    if block == 0:
        # The row's last inputs, some of which may be old ones that have moved up.
        KEPT: tl.constexpr = triton.next_power_of_2(W - 1)
        backs = 1 + tl.arange(0, KEPT)[:, None]
        kept = (backs < W) & here[None, :]
        ends = stop - backs
        last = tl.load(
            x_ptr + ends.to(tl.int64) * x_token + channels[None, :], mask=kept & (ends >= first), other=0.0
        ).to(tl.float32)
        older_at = _kept_at(channels[None, :], first - ends, before_ptr, page_stride, share_stride, SHARES, EACH, W)
        older = kept & (ends < first) & (first - ends < W) & going_on
        last += tl.load(inputs_ptr + older_at, mask=older, other=0.0).to(tl.float32)
        to = _kept_at(channels[None, :], backs, after_ptr, page_stride, share_stride, SHARES, EACH, W)
        # The pages may be those that were read.
        tl.debug_barrier()
        tl.store(inputs_ptr + to, last.to(inputs_ptr.dtype.element_ty), mask=kept)


def causal_conv(x: Tensor, weight: Tensor, inputs: Tensor, pages: StatePages, query_starts: Tensor) -> Tensor:
    """See `CausalConv`."""
    (num_tokens, num_channels), taps = x.shape, weight.shape[1]
    num_rows, num_pages = pages.before.shape
    assert x.stride(1) == inputs.stride(3) == pages.before.stride(1) == pages.after.stride(1) == 1
    assert pages.before.stride(0) == pages.after.stride(0)
    out = torch.empty((num_tokens, num_channels), dtype=x.dtype, device=x.device)
    grid = (num_tokens // _TOKENS + num_rows + 1, triton.cdiv(num_channels, _CHANNELS))
    _convolve[grid](
        x,
        weight.contiguous(),
        inputs,
        pages.before,
        pages.after,
        pages.fresh.view(torch.uint8),
        query_starts,
        out,
        num_tokens,
        num_rows,
        num_channels,
        x.stride(0),
        *inputs.stride()[:2],
        pages.before.stride(0),
        SHARES=inputs.shape[1],
        EACH=num_channels // (num_pages * inputs.shape[1]),
        W=taps,
        TOKENS=_TOKENS,
        CHANNELS=_CHANNELS,
        num_warps=4,
    )
    return out
