"""One token for every row: the likeliest, or drawn from what temperature, min_p, top_k and top_p leave, in this order; and where
the next step finds it.

Tokens are drawn by inverting the distribution function in id order: a rounding difference in the logits then almost never
changes the token.

Shapes: S rows, V vocabulary, N slots, of which the last may be nobody's.
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


class Likeliest(Protocol):
    """Choose the largest logit."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids, int64 [S], and whether they count, bool [S], of float32 logits [S, V].

        They do not where a logit is NaN or +inf, or all are -inf. Of equal logits the lowest id is taken.
        """
        ...


class Append(Protocol):
    """Add tokens to their sequences."""

    def __call__(
        self, history: Tensor, lengths: Tensor, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor
    ) -> Tensor:
        """Put row i's token at place `positions[i]` of slot `slots[i]` and return int64 [2, S]: ids, and ok as 0 or 1.

        history: int32 [N, L]. lengths: int64 [N], which becomes one more than the place. slots, positions, ids: int64 [S]. Rows
        that are not ok (bool [S]), whose place is beyond L or whose slot is nobody's, the last, change nothing.
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
LIKELIEST, APPEND = (
    Op(
        name=name,
        candidates=(
            native_candidate(name, f"octavo.ops.draw.cpu:{name}"),
            Candidate(name="torch", path=f"octavo.ops.draw.reference:{name}"),
        ),
    )
    for name in ("likeliest", "append")
)
