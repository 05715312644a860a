"""The product with the vocabulary's table, whose result is never rounded to a narrower dtype.

Shapes: S rows to sample, V vocabulary, N hidden features.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class Logits(Protocol):
    """Score every token of the vocabulary."""

    def __call__(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return float32 [S, V] of hidden [S, N] and weight [V, N], which have the same dtype."""
        ...


LOGITS = Op(
    name="logits",
    candidates=(
        Candidate(
            name="cublas",
            path="octavo.ops.logits.vendor:logits",
            kinds=("cuda",),
            dtypes=("bfloat16", "float16"),
        ),
        native_candidate("logits", "octavo.ops.product.cpu:logits", "product"),
        Candidate(name="torch", path="octavo.ops.logits.reference:logits"),
    ),
)
