"""How ranks are laid out: one axis for each kind of parallelism, of size 1 where it is not used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from octavo.ops.few_rows import Ranks


class Group(Protocol):
    """The ranks of one axis and the way between them. What is received overwrites `x`, contiguous on the device.

    waits: whether this rank waits for another now; may be read from any thread. how: what it goes over, in words.
    """

    waits: bool
    how: str

    @property
    def peers(self) -> Ranks | None:
        """A quicker way for small sums, if there is one."""
        ...

    def all_reduce(self, x: Tensor) -> None:
        """Sum over all ranks."""
        ...

    def all_gather(self, parts: Sequence[Tensor], x: Tensor) -> None:
        """Bring every rank's x, all of one shape, into `parts`, by rank."""
        ...

    def broadcast(self, x: Tensor, source: int) -> None:
        """Give every rank what `source` has."""
        ...

    def send(self, x: Tensor, to: int) -> None:
        """Send to a rank and return at once; x must not change any more."""
        ...

    def receive(self, x: Tensor, source: int) -> None:
        """Wait for what a rank has sent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """`size` ranks, of which this one is number `rank`. group: the way to the others, None where it is not used."""

    size: int = 1
    rank: int = 0
    group: Group | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The axes, and this rank's place on each. tensor: parts of a matrix. expert: whole experts. pipeline: layers.

    experts: the place of each logical expert among all that the expert axis holds; empty: as they are numbered.
    """

    tensor: Axis = field(default_factory=Axis)
    expert: Axis = field(default_factory=Axis)
    pipeline: Axis = field(default_factory=Axis)
    experts: tuple[int, ...] = ()

    @property
    def of_experts(self) -> Mesh:
        """The axes as experts see them: spread over the ranks of the tensor axis itself, none of them is cut."""
        spread = self.expert.size > 1 and self.expert is self.tensor
        return replace(self, tensor=Axis()) if spread else self

    @property
    def starts(self) -> bool:
        """Whether this rank is of the first stage, which has the embeddings."""
        return self.pipeline.rank == 0

    @property
    def ends(self) -> bool:
        """Whether this rank is of the last stage, which has the head."""
        return self.pipeline.rank == self.pipeline.size - 1

    @property
    def samples(self) -> bool:
        """Whether this is the one rank that chooses tokens."""
        return self.ends and self.tensor.rank == 0

    @property
    def waits(self) -> bool:
        """Whether this rank waits for another now; may be asked from any thread."""
        return any(group.waits for group in self.groups)

    @property
    def groups(self) -> list[Group]:
        """The groups that this rank is in."""
        return [axis.group for axis in (self.tensor, self.pipeline) if axis.group is not None]

    def any(self, here: bool, device: torch.device) -> bool:
        """Wait until every rank has come here; return whether `here` holds for one of them. device: where its tensors live."""
        if self.groups:
            count = torch.full((4,), here, dtype=torch.float32, device=device)
            for group in self.groups:
                group.all_reduce(count)
            return bool(count[0].item())
        return here


def coordinates(rank: int, tensor: int) -> tuple[int, int]:
    """Return (place on the tensor axis, place on the pipeline axis) of a rank; neighbours share a stage."""
    return rank % tensor, rank // tensor
