"""Weights of few bits in GGUF's kinds of blocks, multiplied as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.checkpoint.ggml_types import GGML_TYPES
from octavo.nn.formats.base import Sliced, TensorSpec
from octavo.ops.packed_product import PackedProduct
from octavo.ops.product import Logits

_KINDS = {kind.name: kind for kind in GGML_TYPES.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """A weight [out, in] as uint8 [out, blocks of a row, bytes of a block].

    kind: "Q4_K". dtype: of what is multiplied. integers: inputs may be rounded to 16 bits.
    """

    kind: str
    dtype: torch.dtype
    kernel: PackedProduct
    integers: bool
    fuses: bool = True

    def tensors(self, num_outs: int, num_ins: int) -> tuple[TensorSpec, ...]:
        """Return the one tensor."""
        kind = _KINDS[self.kind]
        shape = (num_outs, num_ins // kind.block, kind.nbytes)
        ins = Sliced(dim=1, unit=kind.block)
        return (TensorSpec(name="weight", shape=shape, dtype=torch.uint8, outs=Sliced(dim=0), ins=ins),)

    def finalize(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the blocks into the kernel's order, in place: all of them have to be loaded anew before it runs again."""
        self.kernel.pack(tensors["weight"], self.kind)

    def apply(self, x: Tensor, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
        """Return `x @ weight.T + bias` [T, out]."""
        return self.kernel.product(x, tensors["weight"], self.kind, bias, x.dtype, self.integers)

    def gather(self, ids: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the rows [T, in] of ids."""
        return self.kernel.rows(tensors["weight"], self.kind, ids, self.dtype)

    def score(self, x: Tensor, tensors: Mapping[str, Tensor], logits: Logits) -> Tensor:
        """Return float32 [T, out]."""
        return self.kernel.product(x, tensors["weight"], self.kind, None, torch.float32, self.integers)
