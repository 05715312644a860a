"""Products with plain weights; that with the vocabulary's table is never rounded to a narrower dtype.

Shapes: T tokens, O outputs, I inputs, S rows to sample, V vocabulary, N hidden features.
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


class Logits(Protocol):
    """Score every token of the vocabulary."""

    def __call__(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return float32 [S, V] of hidden [S, N] and weight [V, N], which have the same dtype."""
        ...


PRODUCT = Op(
    name="product",
    candidates=(
        native_candidate("product", "octavo.ops.product.cpu:product"),
        Candidate(name="torch", path="torch.nn.functional:linear"),
    ),
)
LOGITS = Op(
    name="logits",
    candidates=(
        Candidate(
            name="cublas",
            path="octavo.ops.product.vendor:logits",
            kinds=("cuda",),
            dtypes=("bfloat16", "float16"),
        ),
        native_candidate("logits", "octavo.ops.product.cpu:logits", "product"),
        Candidate(name="torch", path="octavo.ops.product.reference:logits"),
    ),
)
