"""Recurrent ops in Triton. Convolutions: a program takes a few tokens of one row and some channels. The gated delta rule, token
by token: a program holds some columns of one head's state of one row.

Shapes: T tokens, R rows, C channels, W taps, S pages that a state spans, G shares or heads of a state in a page; K key heads, H
value heads, D key features, V value features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.paged_attention.triton_pieces import row_of
from octavo.ops.recurrence import StatePages

_TOKENS, _CHANNELS = 16, 128
# Columns of a state that a program holds.
_COLUMNS = 32


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


@triton.jit
def _fold(
    q_ptr,
    k_ptr,
    v_ptr,
    decay_ptr,
    beta_ptr,
    states_ptr,
    before_ptr,
    after_ptr,
    fresh_ptr,
    starts_ptr,
    out_ptr,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    decay_token,
    beta_token,
    page_stride,
    head_stride,
    pages_row,
    SHARE: tl.constexpr,
    HEADS_PER_PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    NUM_VALUES: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    features, columns = tl.arange(0, D), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    left, right = features < SIZE, columns < NUM_VALUES
    at = head % HEADS_PER_PAGE * head_stride + features[:, None] * NUM_VALUES + columns[None, :]
    here = left[:, None] & right[None, :]
    page = row * pages_row + head // HEADS_PER_PAGE
    kept = here & (columns * 0 + tl.load(fresh_ptr + row).to(tl.int32) == 0)[None, :]
    state = tl.load(states_ptr + tl.load(before_ptr + page) * page_stride + at, mask=kept, other=0.0).to(tl.float32)
    for token in range(tl.load(starts_ptr + row), tl.load(starts_ptr + row + 1)):
        place = tl.cast(token, tl.int64)
        q = tl.load(q_ptr + place * q_token + head // SHARE * q_head + features, mask=left, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + place * k_token + head // SHARE * k_head + features, mask=left, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + place * v_token + head * v_head + columns, mask=right, other=0.0).to(tl.float32)
        q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * (SIZE**-0.5)
        k *= tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
        state *= tl.exp(tl.load(decay_ptr + place * decay_token + head))
        correction = (v - tl.sum(state * k[:, None], 0)) * tl.load(beta_ptr + place * beta_token + head)
        state += k[:, None] * correction[None, :]
        answer = tl.sum(state * q[:, None], 0)
        to = out_ptr + (place * tl.num_programs(1) + head) * NUM_VALUES + columns
        tl.store(to, answer.to(out_ptr.dtype.element_ty), mask=right)
    to = states_ptr + tl.load(after_ptr + page) * page_stride + at
    tl.store(to, state.to(states_ptr.dtype.element_ty), mask=here)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    pages: StatePages,
    query_starts: Tensor,
) -> Tensor:
    """See `GatedDeltaRule`."""
    (_, num_key_heads, size), (_, num_heads, num_values) = q.shape, v.shape
    assert q.stride(2) == k.stride(2) == v.stride(2) == decay.stride(1) == beta.stride(1) == states.stride(3) == 1
    assert pages.before.stride() == pages.after.stride() and pages.before.stride(1) == 1
    # Zero for tokens that belong to no row.
    out = torch.zeros(v.shape, dtype=v.dtype, device=v.device)
    _fold[(len(pages.before), num_heads, triton.cdiv(num_values, _COLUMNS))](
        q,
        k,
        v,
        decay,
        beta,
        states,
        pages.before,
        pages.after,
        pages.fresh.view(torch.uint8),
        query_starts,
        out,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        decay.stride(0),
        beta.stride(0),
        *states.stride()[:2],
        pages.before.stride(0),
        SHARE=num_heads // num_key_heads,
        HEADS_PER_PAGE=states.shape[1],
        SIZE=size,
        NUM_VALUES=num_values,
        D=triton.next_power_of_2(size),
        COLUMNS=_COLUMNS,
        num_warps=4,
    )
    return out
