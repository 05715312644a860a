"""How ranks are laid out: one axis for each kind of parallelism. All are of size 1 until several ranks can run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """`size` ranks, of which this one is number `rank`."""

    size: int = 1
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The axes, and this rank's place on each. tensor: parts of a matrix. expert: whole experts. pipeline: layers."""

    tensor: Axis = field(default_factory=Axis)
    expert: Axis = field(default_factory=Axis)
    pipeline: Axis = field(default_factory=Axis)
