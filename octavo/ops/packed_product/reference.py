"""Packed products in plain torch: the weight becomes numbers anew for every call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.ops.packed_product.blocks import dequantize


@dataclass(frozen=True, slots=True)
class TorchProduct:
    """See `PackedProduct`. Blocks stay in the order of a file."""

    pays: bool = False

    def pack(self, blocks: Tensor, kind: str) -> None:
        """Leave them."""

    def rows(self, weight: Tensor, kind: str, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """See `PackedProduct`."""
        return _numbers(weight[ids], kind).to(dtype)

    def product(
        self, x: Tensor, weight: Tensor, kind: str, bias: Tensor | None, dtype: torch.dtype, integers: bool
    ) -> Tensor:
        """See `PackedProduct`; nothing is rounded."""
        wide = None if bias is None else bias.float()
        return F.linear(x.float(), _numbers(weight, kind), wide).to(dtype)


def _numbers(blocks: Tensor, kind: str) -> Tensor:
    return dequantize(kind, blocks.flatten()).view(len(blocks), -1)


PRODUCT = TorchProduct()
