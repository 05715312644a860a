"""Adding chosen tokens to their sequences, where the next step finds them.

Shapes: S rows, N slots; the last slot is nobody's.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from octavo.ops.candidate import Candidate, Op
from octavo.ops.native import native_candidate


class Append(Protocol):
    """Add tokens."""

    def __call__(
        self, history: Tensor, lengths: Tensor, slots: Tensor, positions: Tensor, ids: Tensor, ok: Tensor
    ) -> Tensor:
        """Put row i's token at place `positions[i]` of slot `slots[i]` and return int64 [2, S]: ids, and ok as 0 or 1.

        history: int32 [N, L]. lengths: int64 [N], which becomes one more than the place. slots, positions, ids: int64 [S]. Rows
        that are not ok (bool [S]), whose place is beyond L or whose slot is nobody's change nothing.
        """
        ...


APPEND = Op(
    name="append",
    candidates=(
        native_candidate("append", "octavo.ops.append.cpu:append"),
        Candidate(name="torch", path="octavo.ops.append.reference:append"),
    ),
)
