"""Grouped experts in Triton: pairs of a token and an expert, sorted by expert, go through products of few or many rows.

Which pairs a program takes it reads on the device, so a captured launch stays right when the router chooses otherwise.

Shapes: T tokens, A experts a token, pairs = T * A (pair t * A + a), E experts held here, I intermediate features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.gated_activation import GatedActivation
from octavo.ops.gated_activation.triton import activated
from octavo.ops.grouped_experts import ExpertStack
from octavo.ops.paged_attention.triton_pieces import row_of
from octavo.ops.triton_target import precision_of, shared_bytes

# Up to this many pairs, each is a block of its own: what sorting would save costs more than reading some weights twice.
_FEW_PAIRS = 64


@triton.jit(do_not_specialize=["num_pairs"])
def _product(
    x_ptr,
    weight_ptr,
    pair_weights_ptr,
    experts_ptr,
    order_ptr,
    starts_ptr,
    out_ptr,
    num_pairs,
    num_experts,
    num_outs,
    num_ins,
    x_row,
    expert_stride,
    SORTED: tl.constexpr,
    PAIRS_PER_ROW: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiply rows of x by their experts' weights. ACTIVATION: of the first half of outputs, which gates the second; or None.

    Without a gate, outputs are weighed by `pair_weights`. PAIRS_PER_ROW: pairs that share a row of x.
    """
    block = tl.program_id(0)
    members = tl.arange(0, M)
    if SORTED:
        expert = row_of(starts_ptr, block, num_experts, M, True).to(tl.int64)
        if expert == num_experts:
            return
        first, stop = tl.load(starts_ptr + expert), tl.load(starts_ptr + expert + 1)
        places = first + (block - first // M - expert) * M + members
        here = places < stop
        pairs = tl.load(order_ptr + places, mask=here, other=0)
    else:
        expert = tl.load(experts_ptr + block)
        if (expert < 0) | (expert >= num_experts):
            return
        pairs = block.to(tl.int64) + members * 0
        here = members == 0
    columns, inner = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    x_at = x_ptr + (pairs // PAIRS_PER_ROW)[:, None] * x_row + inner[None, :]
    weight_at = weight_ptr + expert * expert_stride + columns[:, None].to(tl.int64) * num_ins + inner[None, :]
    up_at = weight_at + num_outs.to(tl.int64) * num_ins
    sums, ups = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    for begin in range(0, num_ins, K):
        left = (begin + inner < num_ins)[None, :]
        x = tl.load(x_at + begin, mask=here[:, None] & left, other=0.0)
        weights = tl.load(weight_at + begin, mask=(columns < num_outs)[:, None] & left, other=0.0)
        sums = tl.dot(x, tl.trans(weights), sums, input_precision=PRECISION)
        if ACTIVATION is not None:
            weights = tl.load(up_at + begin, mask=(columns < num_outs)[:, None] & left, other=0.0)
            ups = tl.dot(x, tl.trans(weights), ups, input_precision=PRECISION)
    if ACTIVATION is not None:
        sums = activated(sums, ACTIVATION) * ups
    else:
        sums *= tl.load(pair_weights_ptr + pairs, mask=here, other=0.0)[:, None]
    out_at = out_ptr + pairs[:, None] * num_outs + columns[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), mask=here[:, None] & (columns < num_outs)[None, :])


@triton.jit
def _add_experts(
    pairs_ptr, experts_ptr, out_ptr, num_experts, num_outs, EACH: tl.constexpr, A: tl.constexpr, N: tl.constexpr
):
    """Add up a token's experts; those that are elsewhere wrote nothing."""
    token, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * N + tl.arange(0, N)
    pairs = token * EACH + tl.arange(0, A)
    experts = tl.load(experts_ptr + pairs, mask=tl.arange(0, A) < EACH, other=-1)
    here = ((experts >= 0) & (experts < num_experts))[:, None] & (columns < num_outs)[None, :]
    found = tl.load(pairs_ptr + pairs[:, None] * num_outs + columns[None, :], mask=here, other=0.0)
    to = out_ptr + token * num_outs + columns
    tl.store(to, tl.sum(found, 0).to(out_ptr.dtype.element_ty), mask=columns < num_outs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """M pairs, N outputs and K inputs of a step; stages of the pipeline that loads them, warps."""

    rows: int
    outs: int
    ins: int
    stages: int
    warps: int


# As measured best on an H200, for 128 experts of 2048 by 768 in bfloat16.
def _tiles(num_pairs: int, num_experts: int, itemsize: int, shared: int) -> _Tiles:
    each = num_pairs // num_experts
    rows = 16 if each <= 16 or num_pairs <= _FEW_PAIRS else 64 if each <= 128 or itemsize > 2 else 128
    outs, ins = (128, 64) if rows == 128 else (64, 128) if rows == 16 else (64, 64)
    stages = min(4 if rows == 128 else 3, shared // ((rows + 2 * outs) * ins * itemsize))
    return _Tiles(rows=rows, outs=outs, ins=ins, stages=max(1, stages), warps=8 if rows == 128 else 4)


def grouped_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    activation: Activation,
    gated: GatedActivation,
) -> Tensor:
    """See `GroupedExperts`."""
    assert gate_up.tensors.keys() == down.tensors.keys() == {"weight"}
    first, second = gate_up.tensors["weight"], down.tensors["weight"]
    (num_tokens, each), num_experts, (hidden, inner) = experts.shape, len(second), second.shape[1:]
    num_pairs = experts.numel()
    experts, weights = experts.contiguous(), weights.contiguous()
    assert first.is_contiguous() and second.is_contiguous() and x.stride(1) == 1 and x.dtype == first.dtype
    out = torch.empty((num_tokens, hidden), dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out
    order, starts, num_blocks = experts, experts, num_pairs
    tiles = _tiles(num_pairs, num_experts, x.itemsize, shared_bytes())
    few = num_pairs <= _FEW_PAIRS
    if not few:
        elsewhere = (experts < 0) | (experts >= num_experts)
        by_id, order = experts.masked_fill(elsewhere, num_experts).flatten().sort(stable=True)
        starts = torch.searchsorted(by_id, torch.arange(num_experts + 1, device=x.device))
        num_blocks = num_pairs // tiles.rows + min(num_experts, num_pairs) + 1
    activated_pairs = torch.empty((num_pairs, inner), dtype=x.dtype, device=x.device)
    # In float32, as they are still to be added up.
    found = torch.empty((num_pairs, hidden), dtype=torch.float32, device=x.device)
    for rows, matrix, to, pairs_per_row, function in (
        (x, first, activated_pairs, each, activation),
        (activated_pairs, second, found, 1, None),
    ):
        num_outs = to.shape[1]
        _product[(num_blocks, triton.cdiv(num_outs, tiles.outs))](
            rows,
            matrix,
            weights,
            experts,
            order,
            starts,
            to,
            num_pairs,
            num_experts,
            num_outs,
            matrix.shape[2],
            rows.stride(0),
            matrix.stride(0),
            SORTED=not few,
            PAIRS_PER_ROW=pairs_per_row,
            ACTIVATION=function,
            M=tiles.rows,
            N=tiles.outs,
            K=tiles.ins,
            PRECISION=precision_of(x.dtype),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    columns = min(1024, triton.next_power_of_2(hidden))
    _add_experts[(num_tokens, triton.cdiv(hidden, columns))](
        found, experts, out, num_experts, hidden, EACH=each, A=triton.next_power_of_2(each), N=columns, num_warps=4
    )
    return out
