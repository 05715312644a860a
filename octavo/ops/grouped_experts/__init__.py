"""The feed-forward of a mixture of experts (Shazeer et al. 2017): every token through the few experts it was routed to.

Shapes: T tokens, N hidden features, E experts held here, A experts a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from octavo.base.facts import Activation
from octavo.ops.candidate import Op
from octavo.ops.gated_activation import GatedActivation
from octavo.ops.usual import usual_op


class ExpertStack(Protocol):
    """One projection of all experts held here, as their format stores it.

    tensors: the format's, each with a leading axis of E experts.
    """

    tensors: Mapping[str, Tensor]

    def product(self, x: Tensor, expert: int) -> tuple[Tensor, ...]:
        """Return each part's outputs [M, out] of x [M, in], through the expert at place `expert`."""
        ...


class GroupedExperts(Protocol):
    """Gated feed-forward of the chosen experts, summed by weight."""

    def __call__(
        self,
        x: Tensor,
        experts: Tensor,
        weights: Tensor,
        gate_up: ExpertStack,
        down: ExpertStack,
        activation: Activation,
        gated: GatedActivation,
    ) -> Tensor:
        """Return [T, N] in x's dtype: the sum over a token's experts of weight times `down(gated(gate_up(x)))`.

        x: [T, N]. experts: int64 [T, A], places in the stacks; what lies outside 0..E-1 is on another rank and adds
        nothing. weights: float32 [T, A].
        """
        ...


# Of stacks that are one plain matrix an expert, called "weight".
GROUPED_EXPERTS = usual_op("grouped_experts", recordable=False)
# Of stacks in any format: the reference, which is the last candidate.
EXPERTS_IN_TURN = Op(name="experts_in_turn", candidates=GROUPED_EXPERTS.candidates[-1:])
