"""Integer arithmetic used everywhere pages are counted."""

from __future__ import annotations


def ceil_div(numerator: int, denominator: int) -> int:
    """Return `numerator / denominator` rounded up."""
    return -(-numerator // denominator)
