"""The architectures: which class computes each, and what its configuration class has for keys that config.json leaves out.

A model is one file, and a row of `architectures.json` for each name it goes by. Only common keys have defaults there: a front
knows vocabulary, context and end tokens from them, and imports no model file. A model's own keys have theirs in its file
(`config_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from octavo.base.plugins import extend
from octavo.base.registry import Registry


class _Row(msgspec.Struct, frozen=True):
    """module: of `octavo/models/`, which has a class of the architecture's name."""

    module: str
    model_type: str
    defaults: dict[str, Any]


_ROWS: Final = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, _Row])


def architectures() -> Registry:
    """Return the registry of model classes, with those of other packages (entry points `octavo.models`)."""
    registry = Registry("model", {name: f"octavo.models.{row.module}:{name}" for name, row in _ROWS.items()})
    extend(registry, "octavo.models")
    return registry


def config_defaults(architecture: str) -> Mapping[str, Any]:
    """Return what the architecture's configuration class has for common keys."""
    return _ROWS[architecture].defaults if architecture in _ROWS else {}


def of_model_type(model_type: str) -> str | None:
    """Return the architecture of a file that says no more than its `model_type`, None if no row has it."""
    return next((name for name, row in _ROWS.items() if row.model_type == model_type), None)
