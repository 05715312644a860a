"""A short causal convolution over each channel, before a recurrence (Fu et al. 2022, H3; Gu & Dao 2023, Mamba).

Shapes: T tokens in the step, R rows, C channels, W taps of the filter, P pages in the pool, G shares of the channels in a
page.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.states import StatePages
from octavo.ops.usual import usual_op


class CausalConv(Protocol):
    """Convolve, then SiLU."""

    def __call__(self, x: Tensor, weight: Tensor, inputs: Tensor, pages: StatePages, query_starts: Tensor) -> Tensor:
        """Return silu of each token's filtered channels [T, C] in x's dtype; keep each row's last W - 1 inputs.

        x: [T, C]. weight: [C, W], the newest token's tap last. inputs: strided view [P, G, 1, C / G / S * (W - 1)], channel
        by channel, oldest first. query_starts: int32 [R + 1].
        """
        ...


CAUSAL_CONV = usual_op("causal_conv", recordable=False)
