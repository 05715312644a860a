"""The gated delta rule in Triton, token by token: a program holds some columns of one head's state of one row.

Shapes: T tokens, R rows, K key heads, H value heads, D key features, V value features, G heads of a state in a page.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.ops.states import StatePages

# Columns of a state that a program holds.
_COLUMNS = 32


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
