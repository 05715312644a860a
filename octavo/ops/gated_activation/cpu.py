"""Activations by the processor's kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.native import DTYPES, NativeOp, packed

_ACTIVATION = NativeOp("activation", "ppp qqqqqq")
_NUMBERS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}


def activation(x: Tensor, activation: Activation) -> Tensor:
    """See `ActivationOf`."""
    return _activated(x, None, activation)


def gated_activation(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """See `GatedActivation`."""
    return _activated(gate, up, activation)


def _activated(gate: Tensor, up: Tensor | None, activation: Activation) -> Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype)
    gate, up = packed(gate.flatten(1)), None if up is None else packed(up.flatten(1))
    assert up is None or up.dtype == gate.dtype
    strides = gate.stride(0), 0 if up is None else up.stride(0)
    _ACTIVATION(gate, up, out, DTYPES[gate.dtype], _NUMBERS[activation], *gate.shape, *strides)
    return out
