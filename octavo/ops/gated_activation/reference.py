"""Activations in plain torch."""

from __future__ import annotations

from typing import assert_never

import torch.nn.functional as F
from torch import Tensor

from octavo.base.facts import Activation


def activation(x: Tensor, activation: Activation) -> Tensor:
    """See `ActivationOf`."""
    return _activate(x.float(), activation).to(x.dtype)


def gated_activation(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """See `GatedActivation`."""
    return _activate(gate.float(), activation).mul_(up).to(gate.dtype)


def _activate(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case _:
            assert_never(activation)
