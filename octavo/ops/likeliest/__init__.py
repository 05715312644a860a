"""Every row's likeliest token. Shapes: S rows, V vocabulary."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class Likeliest(Protocol):
    """Choose the largest logit."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids, int64 [S], and whether they count, bool [S], of float32 logits [S, V].

        They do not where a logit is NaN or +inf, or all are -inf. Of equal logits the lowest id is taken.
        """
        ...


LIKELIEST = Op(
    name="likeliest",
    candidates=(
        native_candidate("likeliest", "octavo.ops.likeliest.cpu:likeliest"),
        Candidate(name="torch", path="octavo.ops.likeliest.reference:likeliest"),
    ),
)
