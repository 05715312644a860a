"""Products with weights that stay in few bits, and their rows.

Shapes: T tokens, O outputs, I inputs, B blocks of a row, each with the bytes that its kind has for it (`blocks.py`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class PackedProduct(Protocol):
    """What multiplies weights of one of the kinds `PACKED`. pays: whether it is better to keep them so than as numbers."""

    pays: bool

    def pack(self, blocks: Tensor, kind: str) -> None:
        """Put blocks, uint8 [O, B, bytes], into the order that the others want, in place."""
        ...

    def rows(self, weight: Tensor, kind: str, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows [T, I] of ids, int64 [T], as numbers."""
        ...

    def product(
        self, x: Tensor, weight: Tensor, kind: str, bias: Tensor | None, dtype: torch.dtype, integers: bool
    ) -> Tensor:
        """Return x [T, I] times the weight, plus bias [O]: [T, O] in `dtype`.

        integers: x may be rounded to 16 bits, in groups of 32 inputs of a token that share a scale; else sums are as exact as
        float32 makes them. A token's outputs do not depend on the others.
        """
        ...


PACKED_PRODUCT = Op(
    name="packed_product",
    candidates=(
        native_candidate(
            "packed_product", "octavo.ops.packed_product.cpu:PRODUCT", "packed_product", "pack", "packed_rows"
        ),
        Candidate(name="torch", path="octavo.ops.packed_product.reference:PRODUCT"),
    ),
)
