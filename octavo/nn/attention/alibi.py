"""Attention with linear biases (Press et al. 2021): a head sees a token the less, the farther back it is."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Alibi:
    """slopes: what each query head takes off a score for every token between key and query."""

    slopes: tuple[float, ...]


def alibi(num_heads: int, scale: float = 1.0) -> Alibi:
    """Return the paper's slopes, times `scale`: a geometric sequence, filled in between where heads are no power of two."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return Alibi(slopes=tuple(scale * slope for slope in (*slopes, *between)))
