"""Role x mesh -> the slice of a weight that this rank holds. Weights are [out, in]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.base.errors import ConfigError
from octavo.base.intmath import ceil_div
from octavo.nn.parallel.mesh import Axis, Mesh

# column: outputs are spread over the tensor axis. row: inputs are, and the outputs are summed.
Role = Literal["replicated", "column", "row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The rows and columns of a weight that are held here."""

    outs: range
    ins: range


def share(size: int, axis: Axis, unit: int = 1, repeat: bool = False) -> range:
    """Return this rank's share of `size` features, in whole units (heads, quantized blocks).

    repeat: where there are fewer units than ranks, neighbours hold the same one. Raises ConfigError if units do not go round.
    """
    count = size // unit
    assert count * unit == size, f"{size} features are not whole units of {unit}"
    if count % axis.size == 0:
        each = size // axis.size
        return range(axis.rank * each, (axis.rank + 1) * each)
    if repeat and axis.size % count == 0:
        first = axis.rank // (axis.size // count) * unit
        return range(first, first + unit)
    raise ConfigError(
        f"tensor_parallel_size {axis.size}: {count} units of {unit} features cannot be spread over {axis.size} ranks",
        field="tensor_parallel_size",
    )


def portion(size: int, axis: Axis, rank: int | None = None) -> range:
    """Return the part of `size` rows or layers that this rank (or rank number `rank`) holds: as even as it gets.

    The last ranks have the smaller parts. Raises ConfigError if there is less than one for each.
    """
    if size < axis.size:
        raise ConfigError(
            f"{size} layers or rows cannot be spread over {axis.size} ranks", field="pipeline_parallel_size"
        )
    place = axis.rank if rank is None else rank
    return range(ceil_div(place * size, axis.size), ceil_div((place + 1) * size, axis.size))


def place(role: Role, mesh: Mesh, shape: tuple[int, int], unit: int = 1, repeat: bool = False) -> Placement:
    """Return what of a weight of `shape` (out, in) is held here; `unit` and `repeat` are for the spread dimension."""
    outs, ins = range(shape[0]), range(shape[1])
    if role == "column":
        outs = share(shape[0], mesh.tensor, unit, repeat)
    elif role == "row":
        ins = share(shape[1], mesh.tensor, unit, repeat)
    return Placement(outs=outs, ins=ins)
