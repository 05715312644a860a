"""Integer arithmetic used everywhere pages are counted."""

from __future__ import annotations


def ceil_div(numerator: int, denominator: int) -> int:
    """Return `numerator / denominator` rounded up."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple
