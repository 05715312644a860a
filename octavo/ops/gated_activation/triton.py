"""Activations in Triton. Shapes: T tokens, I intermediate features."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.base.facts import Activation

_COLUMNS = 1024


@triton.jit
def _tanh(x):
    small = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """Return the activation of float32 x."""
    if ACTIVATION == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        y = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        y = x * 0.5 * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    else:
        tl.static_assert(ACTIVATION == "relu")
        y = tl.where(x < 0.0, 0.0, x)
    return y


@triton.jit
def _activate(
    gate_ptr,
    up_ptr,
    out_ptr,
    num_columns,
    gate_token,
    up_token,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = columns < num_columns
    y = activated(tl.load(gate_ptr + token * gate_token + columns, mask=here, other=0.0).to(tl.float32), ACTIVATION)
    if GATED:
        y *= tl.load(up_ptr + token * up_token + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * num_columns + columns, y.to(out_ptr.dtype.element_ty), mask=here)


def activation(x: Tensor, activation: Activation) -> Tensor:
    """See `ActivationOf`."""
    return _launch(x, None, activation)


def gated_activation(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """See `GatedActivation`."""
    return _launch(gate, up, activation)


def _launch(gate: Tensor, up: Tensor | None, activation: Activation) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if out.numel() == 0:
        return out
    gate_TI = gate.reshape(-1, gate.shape[-1])
    up_TI = gate_TI if up is None else up.reshape(gate_TI.shape)
    assert gate_TI.stride(1) == 1 and up_TI.stride(1) == 1
    num_tokens, num_columns = gate_TI.shape
    columns = min(_COLUMNS, triton.next_power_of_2(num_columns))
    _activate[(num_tokens, triton.cdiv(num_columns, columns))](
        gate_TI,
        up_TI,
        out,
        num_columns,
        gate_TI.stride(0),
        up_TI.stride(0),
        ACTIVATION=activation,
        GATED=up is not None,
        COLUMNS=columns,
        num_warps=4,
    )
    return out
