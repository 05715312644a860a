"""The hooks through which the loader's passes reach a layer. A layer has those that concern it.

The passes, in order: `assign` a weight format, `place` on the mesh (parameters are made here, on the meta device), `bind`
kernels and backends, fill the `destinations`, `finalize`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from octavo.base.facts import DeviceFacts
from octavo.nn.formats.base import WeightFormat
from octavo.nn.parallel.mesh import Mesh
from octavo.ops.registry import Kernels
from octavo.protocol.kept import KeptLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What layers are bound to. attention: name of the backend that is forced. decisions: filled as layers choose."""

    facts: DeviceFacts
    dtype: str
    device: torch.device
    kernels: Kernels
    mesh: Mesh
    max_model_len: int
    attention: str | None = None
    decisions: dict[str, None] = field(default_factory=dict)

    def note(self, decision: str) -> None:
        """Keep a decision; the same one from many layers is kept once."""
        self.decisions[decision] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a checkpoint's tensor goes. shape: the whole tensor's. cut: the slice of it that is held, as `tensor` [cut].

    A tensor without elements: it belongs to the checkpoint, but nothing of it is held here.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    cut: tuple[slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Where a checkpoint keeps a matrix and its bias, if it is not simply under a name of its own.

    Matrices under the same name share one tensor, in the order in which the layer has them: one after another, or with
    `groups` cut into so many groups that each hold a share of every one (q, k and v head by head). transposed: [in, out].
    ignored: files have it, and nobody needs it.
    """

    name: str
    groups: int = 1
    transposed: bool = False
    ignored: bool = False


@runtime_checkable
class Assigned(Protocol):
    """A layer with weights in a format."""

    def assign(self, path: str, choose: Callable[[str, int], WeightFormat]) -> None:
        """Take a format for each part; `choose` is asked with the part's path and its number of inputs."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A layer with parameters or local sizes."""

    def place(self, mesh: Mesh, dtype: torch.dtype) -> None:
        """Settle local sizes and make parameters on the meta device."""
        ...


@runtime_checkable
class Bound(Protocol):
    """A layer that calls kernels, backends or collectives."""

    def bind(self, binding: Binding) -> None:
        """Take what it calls; constants that depend on the context length are computed here."""
        ...


@runtime_checkable
class Filled(Protocol):
    """A layer with weights from a checkpoint."""

    def destinations(self) -> Mapping[str, Destination]:
        """Return destinations by name below the layer: `weight`, `q.bias`."""
        ...


@runtime_checkable
class Finalized(Protocol):
    """A layer that repacks its weights."""

    def finalize(self) -> None:
        """Prepare for forward passes, once the destinations are filled."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A layer that keeps something between steps, or reads what another keeps."""

    def kept(self) -> KeptLayer:
        """Return what, once the layer is placed and bound."""
        ...


class Elsewhere(nn.Module):
    """Stands where a module is that another stage holds, with all its weights."""


def parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    """Return a parameter on the meta device that asks for no gradient."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


def nothing(shape: tuple[int, ...]) -> Destination:
    """Return the destination of a tensor of which other ranks hold everything."""
    return Destination(tensor=torch.empty((0, *shape[1:])), shape=shape, cut=(slice(0, 0),))


def whole(tensor: Tensor) -> Destination:
    """Return the destination of a tensor that every rank holds as it is."""
    return Destination(tensor=tensor, shape=tuple(tensor.shape))
