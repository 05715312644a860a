"""Learned numbers that are no projection and no norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from octavo.nn.assembly import Destination, parameter
from octavo.nn.parallel.mesh import Mesh
from octavo.nn.parallel.placement import share


class Vector(nn.Module):
    """A vector of `num` numbers. name: the last part of its name in a checkpoint. spread: ranks hold a share each."""

    values: nn.Parameter

    def __init__(self, num: int, name: str, *, spread: bool = False) -> None:
        super().__init__()
        self.num = num
        self.name = name
        self.spread = spread

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Make the numbers that are held here."""
        self.held = share(self.num, mesh.tensor) if self.spread else range(self.num)
        self.values = parameter((len(self.held),), dtype)

    def destinations(self) -> Mapping[str, Destination]:
        """Return the one tensor, by `name`."""
        cut = (slice(self.held.start, self.held.stop),)
        return {self.name: Destination(tensor=self.values, shape=(self.num,), cut=cut)}

    def forward(self) -> Tensor:
        """Return the numbers that are held here."""
        return self.values
