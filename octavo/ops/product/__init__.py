"""Products with plain weights.

Shapes: T tokens, O outputs, I inputs.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class Product(Protocol):
    """Multiply by a weight."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, /) -> Tensor:
        """Return `x @ weight.T + bias` [T, O] of x [T, I], weight [O, I] and bias [O], which have the same dtype."""
        ...


PRODUCT = Op(
    name="product",
    candidates=(
        native_candidate("product", "octavo.ops.product.cpu:product"),
        Candidate(name="torch", path="torch.nn.functional:linear"),
    ),
)
