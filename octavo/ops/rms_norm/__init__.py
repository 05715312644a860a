"""Root-mean-square normalization (Zhang & Sennrich 2019), alone and with the residual sum before it.

Shapes: T tokens, N features; leading dimensions may be more.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class RmsNorm(Protocol):
    """Normalize the last dimension."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return `x / sqrt(mean(x²) + eps) * weight` [..., N], computed in float32 and rounded once. weight: [N]."""
        ...


class AddRmsNorm(Protocol):
    """Add to the residual stream, then normalize."""

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x [T, N] to residual [T, N] in place and return the residual normalized as by `RmsNorm`."""
        ...


RMS_NORM = Op(
    name="rms_norm",
    candidates=(
        Candidate(name="triton", path="octavo.ops.rms_norm.triton:rms_norm", kinds=("cuda",)),
        native_candidate("norm", "octavo.ops.rms_norm.cpu:rms_norm"),
        Candidate(name="torch", path="octavo.ops.rms_norm.reference:rms_norm"),
    ),
)
ADD_RMS_NORM = Op(
    name="add_rms_norm",
    candidates=(
        Candidate(name="triton", path="octavo.ops.rms_norm.triton:add_rms_norm", kinds=("cuda",)),
        native_candidate("norm", "octavo.ops.rms_norm.cpu:add_rms_norm"),
        Candidate(name="torch", path="octavo.ops.rms_norm.reference:add_rms_norm"),
    ),
)
