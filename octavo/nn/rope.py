"""Rotary position embedding: the angles, computed once at start for every position that is served."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from octavo.base.errors import CheckpointError
from octavo.base.facts import RopeFacts
from octavo.nn.assembly import Binding


class Rope(nn.Module):
    """The table of cosines and sines that all layers with the same frequencies share."""

    table: Tensor

    def __init__(self, facts: RopeFacts) -> None:
        super().__init__()
        self.facts = facts

    def bind(self, binding: Binding) -> None:
        """Compute the table, float32 [max_model_len, dim]: cosines, then sines."""
        self.table = rope_table(self.facts, binding.max_model_len).to(binding.device)
        self._rotate = binding.kernels.rope

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> None:
        """Rotate q [T, H, D] and k [T, K, D] in place. positions: int64 [T]."""
        self._rotate(q, k, positions, self.table)


def rope_table(facts: RopeFacts, num_positions: int) -> Tensor:
    """Return float32 [num_positions, dim]: the cosines of each position's dim / 2 angles, then their sines."""
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), rope_frequencies(facts))
    return torch.cat((angles.cos(), angles.sin()), -1)


def rope_frequencies(facts: RopeFacts) -> Tensor:
    """Return float32 [dim / 2], radians a position. Raises CheckpointError for a kind that is not known."""
    frequencies = 1.0 / facts.theta ** (torch.arange(0, facts.dim, 2, dtype=torch.float32) / facts.dim)
    match facts.kind:
        case "default":
            return frequencies
        case "linear":
            return frequencies / facts.factor
        case "llama3":
            return _llama3(frequencies, facts)
        case kind:
            raise CheckpointError(f"rotary embedding of kind {kind!r} is not supported; default, linear and llama3 are")


def _llama3(frequencies: Tensor, facts: RopeFacts) -> Tensor:
    """Slow down the long waves by `factor`, keep the short ones and blend between (Llama 3.1, model card)."""
    turns = facts.original_max_position * frequencies / (2 * math.pi)
    keep = (turns - facts.low_freq_factor) / (facts.high_freq_factor - facts.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * frequencies / facts.factor + keep * frequencies
