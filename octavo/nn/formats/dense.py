"""Plain matrices in the model's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.nn.formats.base import Sliced, TensorSpec
from octavo.ops.product import Logits, Product


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFormat:
    """A weight [out, in] as it is."""

    dtype: torch.dtype
    product: Product = F.linear
    fuses: bool = True

    def tensors(self, num_outs: int, num_ins: int) -> tuple[TensorSpec, ...]:
        """Return the one tensor."""
        shape = (num_outs, num_ins)
        return (TensorSpec(name="weight", shape=shape, dtype=self.dtype, outs=Sliced(dim=0), ins=Sliced(dim=1)),)

    def finalize(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing: it is multiplied as it is stored."""

    def apply(self, x: Tensor, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        """Return `x @ weight.T + bias` [T, out]."""
        return self.product(x, tensors["weight"], bias)

    def gather(self, ids: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the rows [T, in] of ids."""
        return F.embedding(ids, tensors["weight"])

    def score(self, x: Tensor, tensors: Mapping[str, Tensor], logits: Logits) -> Tensor:
        """Return float32 [T, out]."""
        return logits(x, tensors["weight"])
