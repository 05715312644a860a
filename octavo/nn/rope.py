"""Rotary position embedding: the angles, computed once at start for every position that is served.

Shapes: T tokens, H query heads, K key heads, D head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from octavo.base.facts import RopeFacts
from octavo.nn.assembly import Binding
from octavo.ops.rope_write import Rotation


class Rope(nn.Module):
    """The table of cosines and sines that all layers with the same frequencies share.

    interleaved: features 2i and 2i + 1 are a pair; otherwise i and i + dim / 2 are.
    """

    table: Tensor

    def __init__(self, facts: RopeFacts, interleaved: bool = False) -> None:
        super().__init__()
        self.facts = facts
        self.interleaved = interleaved

    def bind(self, binding: Binding) -> None:
        """Compute the table, float32 [max_model_len, dim]: cosines, then sines."""
        self.table = rope_table(self.facts, binding.max_model_len).to(binding.device)
        self._rotate = binding.kernels.rope

    def rotation(self, positions: Tensor) -> Rotation:
        """Return what a kernel needs that rotates as part of its work."""
        return Rotation(positions=positions, table=self.table, interleaved=self.interleaved)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> None:
        """Rotate q [T, H, D] and k [T, K, D] in place. positions: int64 [T]."""
        self._rotate(q, k, positions, self.table, self.interleaved)


def rope_table(facts: RopeFacts, num_positions: int) -> Tensor:
    """Return float32 [num_positions, dim]: cosines of each position's dim / 2 angles, then sines, times attention_factor."""
    frequencies = rope_frequencies(facts, num_positions)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), -1) * facts.attention_factor


def rope_frequencies(facts: RopeFacts, num_positions: int) -> Tensor:
    """Return float32 [dim / 2], radians a position, for a context of num_positions."""
    frequencies = _powers(facts.theta, facts.dim)
    match facts.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / facts.factor
        case "proportional":
            turning = int(facts.turning * facts.dim // 2)
            return torch.cat((frequencies[:turning], torch.zeros(facts.dim // 2 - turning)))
        case "dynamic":
            return _dynamic(frequencies, facts, num_positions)
        case "yarn":
            return _yarn(frequencies, facts)
        case "llama3":
            return _llama3(frequencies, facts)
        case "longrope":
            long = num_positions > facts.original_max_position
            return frequencies / torch.tensor(facts.long_factors if long else facts.short_factors)


def _powers(theta: float, dim: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _dynamic(frequencies: Tensor, facts: RopeFacts, num_positions: int) -> Tensor:
    """Raise theta as the context grows beyond the training's ("NTK-aware" scaling, bloc97 and emozilla 2023)."""
    if num_positions <= facts.original_max_position:
        return frequencies
    growth = facts.factor * num_positions / facts.original_max_position - (facts.factor - 1)
    return _powers(facts.theta * growth ** (facts.dim / (facts.dim - 2)), facts.dim)


def _yarn(frequencies: Tensor, facts: RopeFacts) -> Tensor:
    """Divide the frequency of pairs that turn less than beta_slow times in the training's context, keep those that turn
    more than beta_fast times, and blend between by the pair's number (Peng et al. 2023).
    """  # fmt: skip

    def pair_of(turns: float) -> float:
        wave = facts.original_max_position / (turns * 2 * math.pi)
        return facts.dim * math.log(wave) / (2 * math.log(facts.theta))

    first, last = pair_of(facts.beta_fast), pair_of(facts.beta_slow)
    if facts.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, facts.dim - 1)
    pairs = torch.arange(facts.dim // 2, dtype=torch.float32)
    divided = ((pairs - first) / (last - first or 0.001)).clamp(0, 1)
    return frequencies / facts.factor * divided + frequencies * (1 - divided)


def _llama3(frequencies: Tensor, facts: RopeFacts) -> Tensor:
    """Slow down the long waves by `factor`, keep the short ones and blend between (Llama 3.1, model card)."""
    turns = facts.original_max_position * frequencies / (2 * math.pi)
    keep = (turns - facts.low_freq_factor) / (facts.high_freq_factor - facts.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * frequencies / facts.factor + keep * frequencies
