"""Learned numbers that are no projection and no norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Destination, parameter
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import share


class Vector(nn.Module):
    """A vector of `num` numbers. name: the last part of its name in a checkpoint. spread: ranks hold a share each.

    leading: sizes of 1 that it has before in the checkpoint.
    """

    values: nn.Parameter

    def __init__(self, num: int, name: str, *, spread: bool = False, leading: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.num = num
        self.name = name
        self.spread = spread
        self.leading = leading

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the numbers that are held here."""
        self.held = share(self.num, mesh.tensor) if self.spread else range(self.num)
        self.values = parameter((len(self.held),), dtype)

    def destinations(self) -> Mapping[str, Destination]:
        """Return the one tensor, by `name`."""
        cut = (*(slice(None) for _ in self.leading), slice(self.held.start, self.held.stop))
        tensor = self.values.view(*self.leading, -1)
        return {self.name: Destination(tensor=tensor, shape=(*self.leading, self.num), cut=cut)}

    def forward(self) -> Tensor:
        """Return the numbers that are held here."""
        return self.values
