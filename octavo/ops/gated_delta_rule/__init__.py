"""The gated delta rule (Yang, Kautz & Hatamizadeh 2024): a state that forgets, and corrects what it says of a key.

Shapes: T tokens in the step, R rows, K key heads, H value heads (H / K share a key head), D key features, V value features,
P pages in the pool, G value heads of a state in a page.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.states import StatePages
from octavo.ops.usual import usual_op


class GatedDeltaRule(Protocol):
    """Fold a step's tokens into the states, and read them."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        beta: Tensor,
        states: Tensor,
        pages: StatePages,
        query_starts: Tensor,
    ) -> Tensor:
        """Return [T, H, V] in v's dtype, computed in float32.

        For each token: S = exp(decay) S; S = S + k beta (v - k S); the answer is q S. S [D, V] is a head's state; q and k are
        first scaled to length 1, q then by 1 / sqrt(D). q, k: [T, K, D]. v: [T, H, V]. decay, beta: float32 [T, H], decay
        never above 0. states: strided view [P, G, 1, D * V]. query_starts: int32 [R + 1].
        """
        ...


GATED_DELTA_RULE = usual_op("gated_delta_rule", recordable=False)
