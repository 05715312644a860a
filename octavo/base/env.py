"""The only reader of the environment: one table of every variable Octavo knows."""

from __future__ import annotations

import os
from dataclasses import dataclass

_KNOWN = {
    "OCTAVO_LOG_LEVEL": "log level of all processes: DEBUG, INFO, WARNING or ERROR",
    "OCTAVO_PLUGINS": "comma-separated names of the plugins to load; unset loads all",
    "HF_HOME": "root of the Hugging Face cache",
    "XDG_CACHE_HOME": "the user's cache folder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The environment as read at start."""

    log_level: str
    plugins: tuple[str, ...] | None
    hf_home: str


def read_env() -> Env:
    """Read every known variable once. Source of the names: `known_variables()`."""
    get = os.environ.get  # noqa: TID251
    plugins = get("OCTAVO_PLUGINS")
    cache_home = get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Env(
        log_level=get("OCTAVO_LOG_LEVEL", "INFO").upper(),
        plugins=None if plugins is None else tuple(p for p in plugins.split(",") if p),
        hf_home=get("HF_HOME") or os.path.join(cache_home, "huggingface"),
    )


def known_variables() -> dict[str, str]:
    """Return name -> meaning of every variable that is read."""
    return dict(_KNOWN)
