"""Other people's packages: entry points add rows to registries.

A package declares in its metadata, for example, `[project.entry-points."octavo.models"] MyForCausalLM = "my_pkg.model:MyModel"`.
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import entry_points
from typing import Any

from octavo.base.env import read_env
from octavo.base.registry import Registry


def extend(registry: Registry, group: str) -> None:
    """Add every entry point of `group` to `registry`, unless OCTAVO_PLUGINS leaves it out."""
    allowed = read_env().plugins
    for point in _declared(tuple(sys.path)).select(group=group):
        if allowed is None or point.name in allowed:
            registry.add(point.name, point.value)


@functools.cache
def _declared(_path: tuple[str, ...]) -> Any:
    """Return what all packages declare; to look through many takes 30 ms."""
    return entry_points()
