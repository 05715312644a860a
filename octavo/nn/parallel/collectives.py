"""What ranks do together. With one rank on an axis every collective is the identity."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo.base.errors import ConfigError
from octavo.nn.parallel.mesh import Axis

Collective = Callable[[Tensor], Tensor]


def all_reduce(axis: Axis) -> Collective:
    """Return a function that sums a tensor over an axis; raises ConfigError for more than one rank, not built yet."""
    if axis.size != 1:
        raise ConfigError(f"{axis.size} ranks were asked for, but only one can run yet", field="tensor_parallel_size")
    return _identity


def _identity(x: Tensor) -> Tensor:
    return x
