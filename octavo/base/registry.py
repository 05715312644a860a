"""Registries: a name maps to `module:attribute`, imported on first use.

What can be added to Octavo (models, devices, kernels) is a row in one of these.
Other packages add rows through entry points (`octavo.base.plugins`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from octavo.base.errors import PluginError
from octavo.base.naming import unknown_name


def import_path(path: str) -> Any:
    """Import and return what "module:attribute" names; raises ImportError or AttributeError."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry:
    """Names to import paths of one kind of thing. Rows may be added before start, never changed."""

    def __init__(self, kind: str, rows: Mapping[str, str]) -> None:
        self.kind = kind
        self._rows = dict(rows)

    def add(self, name: str, path: str) -> None:
        """Add a row `name -> "module:attribute"`; raises PluginError if the name is taken by another path."""
        if self._rows.setdefault(name, path) != path:
            raise PluginError(f"{self.kind} {name!r} is already registered as {self._rows[name]}")

    def load(self, name: str) -> Any:
        """Import and return what `name` stands for; raises PluginError for an unknown name or a failed import."""
        if name not in self._rows:
            raise PluginError(unknown_name(self.kind, name, self._rows))
        try:
            return import_path(self._rows[name])
        except (ImportError, AttributeError) as error:
            raise PluginError(f"{self.kind} {name!r} ({self._rows[name]}) failed to import: {error}") from error

    def path(self, name: str) -> str:
        """Return the `module:attribute` that `name` stands for."""
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)
