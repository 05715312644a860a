"""Norms, alone and with the residual sum before them: root-mean-square (Zhang & Sennrich 2019), and layer norm (Ba, Kiros &
Hinton 2016), which takes the mean away first.

Shapes: T tokens, N features, H heads; leading dimensions may be more.
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


class LayerNorm(Protocol):
    """Normalize the last dimension."""

    def __call__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """Return `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` [..., N], computed in float32 and rounded once.

        weight, bias: [N], or [H, N] for an x [..., H, N] whose heads have their own; None is 1 and 0.
        """
        ...


class AddLayerNorm(Protocol):
    """Add to the residual stream, then normalize."""

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """Add x [T, N] to residual [T, N] in place and return the residual normalized as by `LayerNorm`."""
        ...


RMS_NORM = usual_op("rms_norm", native="norm")
ADD_RMS_NORM = usual_op("add_rms_norm", folder="rms_norm", native="norm")
LAYER_NORM = usual_op("layer_norm", folder="rms_norm", native="norm")
ADD_LAYER_NORM = usual_op("add_layer_norm", folder="rms_norm", native="norm")
