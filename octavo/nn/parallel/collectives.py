"""What ranks do together, as functions that layers are bound to. With one rank on an axis every one is the identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.nn.parallel.mesh import Axis, Group

Collective = Callable[[Tensor], Tensor]


def all_reduce(axis: Axis) -> Collective:
    """Return a function that sums a tensor over an axis, in place."""
    if axis.size == 1:
        return _identity
    return _in_place(_group(axis).all_reduce)


def all_gather(axis: Axis, sizes: Sequence[int]) -> Collective:
    """Return a function that joins [..., n] of every rank along the last dimension; n of each rank is in `sizes`."""
    if axis.size == 1:
        return _identity
    group, widest = _group(axis), max(sizes)

    def run(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, widest - x.shape[-1])).contiguous()
        parts = padded.new_empty((len(sizes), *padded.shape)).unbind()
        group.all_gather(parts, padded)
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], -1)

    return run


def broadcast(axis: Axis) -> Collective:
    """Return a function that overwrites a tensor with what the axis's first rank has."""
    if axis.size == 1:
        return _identity
    return _in_place(_group(axis).broadcast, 0)


def receive_before(axis: Axis) -> Collective:
    """Return a function that overwrites a tensor with what the rank before has handed on; the first keeps its own."""
    if axis.rank == 0:
        return _identity
    return _in_place(_group(axis).receive, axis.rank - 1)


def send_on(axis: Axis) -> Collective:
    """Return a function that hands a tensor to the rank behind; it must not change any more. The last keeps its own."""
    if axis.rank == axis.size - 1:
        return _identity
    return _in_place(_group(axis).send, axis.rank + 1)


def _in_place(call: Callable[..., None], *other: int) -> Collective:
    """Return a function that makes the call with a tensor, and the other rank, and returns the tensor."""

    def run(x: Tensor) -> Tensor:
        call(x, *other)
        return x

    return run


def _group(axis: Axis) -> Group:
    assert axis.group is not None, "the ranks of this axis are not connected"
    return axis.group


def _identity(x: Tensor) -> Tensor:
    return x
