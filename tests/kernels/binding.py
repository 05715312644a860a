"""Every candidate of an op that runs on this machine's processor, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.device.registry import detect
from octavo.ops.registry import bind, ops

NAN = float("nan")
# Largest error relative to the largest value, by dtype: rounding once, and sums in float32.
TOLERANCE = {"float32": 2e-6, "bfloat16": 4e-3}


def candidates(op: str) -> list[str]:
    """Return the names of the candidates that fit; each is tested."""
    facts = detect("cpu").facts
    return [found.name for found in ops()[op].candidates if found.refusal(facts, "float32") is None]


def kernel(op: str, candidate: str, dtype: str) -> Callable[..., Any]:
    """Return a bound kernel."""
    return getattr(bind(detect("cpu").facts, dtype, {op: candidate}), op)
