"""Reading and writing states that lie in pages, for the references of recurrent ops.

Shapes: R rows, P pages in the pool, S pages that a state spans, G heads of a plane in a page, D features of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatePages:
    """Where a layer's states are. before, after: int64 [R, S], the pages that hold a row's state before and after the step.

    fresh: bool [R], rows that begin: their state is zero, whatever the pages hold.
    """

    before: Tensor
    after: Tensor
    fresh: Tensor


def read_states(plane: Tensor, pages: StatePages) -> Tensor:
    """Return the rows' states before the step, a copy [R, S * G, D] of plane [P, G, 1, D]."""
    states = plane[pages.before].squeeze(-2).flatten(1, 2)
    return torch.where(pages.fresh[:, None, None], torch.zeros_like(states), states)


def write_states(states: Tensor, plane: Tensor, pages: StatePages) -> None:
    """Put the rows' states [R, S * G, D] into plane [P, G, 1, D]."""
    plane[pages.after] = states.unflatten(1, (pages.after.shape[1], -1)).unsqueeze(-2).to(plane.dtype)
