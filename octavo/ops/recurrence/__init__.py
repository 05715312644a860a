"""Ops of recurrent layers, whose states lie in pages: a short causal convolution over each channel (Fu et al. 2022, H3; Gu & Dao
2023, Mamba), and the gated delta rule (Yang, Kautz & Hatamizadeh 2024), a state that forgets, and corrects what it says of a key.

Shapes: T tokens in the step, R rows, P pages in the pool, S pages that a state spans; C channels, W taps of the filter, G shares
of the channels, or value heads of a state, in a page; K key heads, H value heads (H / K share a key head), D key features, V
value features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatePages:
    """Where a layer's states are. before, after: int64 [R, S], the pages that hold a row's state before and after the step.

    fresh: bool [R], rows that begin: their state is zero, whatever the pages hold.
    """

    before: Tensor
    after: Tensor
    fresh: Tensor


class CausalConv(Protocol):
    """Convolve, then SiLU."""

    def __call__(self, x: Tensor, weight: Tensor, inputs: Tensor, pages: StatePages, query_starts: Tensor) -> Tensor:
        """Return silu of each token's filtered channels [T, C] in x's dtype; keep each row's last W - 1 inputs.

        x: [T, C]. weight: [C, W], the newest token's tap last. inputs: strided view [P, G, 1, C / G / S * (W - 1)], channel
        by channel, oldest first. query_starts: int32 [R + 1].
        """
        ...


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


CAUSAL_CONV = usual_op("causal_conv", folder="recurrence", recordable=False)
GATED_DELTA_RULE = usual_op("gated_delta_rule", folder="recurrence", recordable=False)
