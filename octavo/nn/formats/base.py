"""What a weight format says of itself. A projection holds a format and never asks which one it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.ops.product import Logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced:
    """Features lie along `dim`, `unit` of them in each element."""

    dim: int
    unit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a format, of a weight [out, in]. name: its last part in a checkpoint. outs, ins: None if not sliced so."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    outs: Sliced | None
    ins: Sliced | None


class WeightFormat(Protocol):
    """How a weight is stored and multiplied. It holds no tensors itself.

    fuses: parts of a fused projection may lie one after another in the same tensors.
    """

    @property
    def fuses(self) -> bool:
        """Whether parts may share tensors."""
        ...

    def tensors(self, num_outs: int, num_ins: int) -> tuple[TensorSpec, ...]:
        """Return the tensors that a weight [num_outs, num_ins] takes, as a checkpoint has them."""
        ...

    def finalize(self, tensors: Mapping[str, Tensor]) -> None:
        """Repack loaded tensors in place for `apply`; may run again after new weights are loaded."""
        ...

    def apply(self, x: Tensor, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        """Return x [T, in] times the weight, plus bias [out]: [T, out] in x's dtype."""
        ...

    def gather(self, ids: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the weight's rows [T, in] of ids, int64 [T]: a table's vectors."""
        ...

    def score(self, x: Tensor, tensors: Mapping[str, Tensor], logits: Logits) -> Tensor:
        """Return x [T, in] times the weight, float32 [T, out]. logits: the kernel for plain matrices."""
        ...
