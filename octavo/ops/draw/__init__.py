"""One token for every row: the likeliest, or drawn from what temperature, min_p, top_k and top_p leave, in this order.

Tokens are drawn by inverting the distribution function in id order: a rounding difference in the logits then almost never
changes the token.

Shapes: S rows, V vocabulary, N slots.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate

# Columns of the parameters: float64 `reals`, and int64 `wholes`, which may have more.
TEMPERATURE, TOP_P, MIN_P = range(3)
TOP_K, SEED, CHOICE = range(3)


class Draw(Protocol):
    """Choose tokens."""

    def __call__(
        self, logits: Tensor, slots: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ids, int64 [S], and whether they count, bool [S]: not where a logit is NaN or +inf, or all are -inf.

        logits: float32 [S, V], left as they are. slots: int64 [S], whose parameters count. positions: int64 [S], of the tokens
        in their sequences. reals: float64 [N, 3] of (temperature, top_p, min_p). wholes: int64 [N, 3 or more] of (top_k, seed,
        choice); top_k 0 is off. Of equal logits the lowest ids are taken.
        """
        ...


DRAW = Op(
    name="draw",
    candidates=(
        Candidate(name="triton", path="octavo.ops.draw.triton:draw", kinds=("cuda",)),
        native_candidate("draw", "octavo.ops.draw.cpu:draw"),
        Candidate(name="torch", path="octavo.ops.draw.reference:draw", recordable=False),
    ),
)
