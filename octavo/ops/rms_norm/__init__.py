"""Root-mean-square normalization (Zhang & Sennrich 2019), alone and with the residual sum before it.

Shapes: T tokens, N features; leading dimensions may be more.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.usual import usual_op


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


RMS_NORM = usual_op("rms_norm", native="norm")
ADD_RMS_NORM = usual_op("add_rms_norm", folder="rms_norm", native="norm")
