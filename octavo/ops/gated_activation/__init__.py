"""The activation of an MLP, and that of one with a gate (Shazeer 2020).

Shapes: T tokens, I intermediate features.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


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


ACTIVATION = Op(
    name="activation",
    candidates=(
        Candidate(name="triton", path="octavo.ops.gated_activation.triton:activation", kinds=("cuda",)),
        native_candidate("activation", "octavo.ops.gated_activation.cpu:activation"),
        Candidate(name="torch", path="octavo.ops.gated_activation.reference:activation"),
    ),
)
GATED_ACTIVATION = Op(
    name="gated_activation",
    candidates=(
        Candidate(name="triton", path="octavo.ops.gated_activation.triton:gated_activation", kinds=("cuda",)),
        native_candidate("activation", "octavo.ops.gated_activation.cpu:gated_activation"),
        Candidate(name="torch", path="octavo.ops.gated_activation.reference:gated_activation"),
    ),
)
