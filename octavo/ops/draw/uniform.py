"""Counter-based random numbers: a pure function of (seed, choice, position), whatever else is in the batch.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), chained once per part
of the key. int64 arithmetic wraps around as uint64 does.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
# 52 bits, so that `uniform * total` stays below `total` after rounding.
_BITS = 52


def uniform(seeds: Tensor, choices: Tensor, positions: Tensor) -> Tensor:
    """Return one number in [0, 1) a row: int64 [S] each -> float64 [S]."""
    state = torch.zeros_like(seeds)
    for part in (seeds, choices, positions):
        state = _mix(state + (part + 1) * _STEP)
    return _shift(state, 64 - _BITS).double() * 2.0**-_BITS


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * _MULTIPLIERS[0]
    state = (state ^ _shift(state, 27)) * _MULTIPLIERS[1]
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift right as an unsigned number."""
    return (state >> bits) & (2 ** (64 - bits) - 1)
