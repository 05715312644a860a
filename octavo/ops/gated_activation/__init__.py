"""The activation of an MLP, and that of one with a gate (Shazeer 2020).

Shapes: T tokens, I intermediate features.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.usual import usual_op


class ActivationOf(Protocol):
    """Activate."""

    def __call__(self, x: Tensor, activation: Activation) -> Tensor:
        """Return `activation(x)` [T, I], computed in float32 and rounded once."""
        ...


class GatedActivation(Protocol):
    """Activate the gate and multiply."""

    def __call__(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        """Return `activation(gate) * up` [T, I], computed in float32 and rounded once; both may be strided views."""
        ...


ACTIVATION = usual_op("activation", folder="gated_activation", native="activation")
GATED_ACTIVATION = usual_op("gated_activation", native="activation")
