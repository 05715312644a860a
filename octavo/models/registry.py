"""From an architecture's name to the class that computes it; the rows are in `octavo/checkpoint/architectures.json`."""

from __future__ import annotations

from typing import Any

from octavo.base.errors import UnsupportedError
from octavo.base.naming import nearest
from octavo.checkpoint.architectures import architectures


def load_model(architecture: str) -> type[Any]:
    """Return the class that implements an architecture; raises UnsupportedError for one that is not known."""
    registry = architectures()
    if architecture not in registry:
        guess = nearest(architecture, registry)
        raise UnsupportedError(
            f"architecture {architecture} is not supported" + (f"; the nearest that is: {guess}" if guess else ""),
            field="model",
        )
    return registry.load(architecture)
