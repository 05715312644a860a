"""Logging: one format for every process, to standard error."""

from __future__ import annotations

import logging

from octavo.base.env import default_log_level, read_env

_FORMAT = "%(levelname).1s %(asctime)s %(name)s] %(message)s"


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; the first call sets up the `octavo` root logger."""
    root = logging.getLogger("octavo")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
        root.addHandler(handler)
        level = read_env().log_level
        root.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
        root.propagate = False
        if level not in logging.getLevelNamesMapping():
            root.warning("OCTAVO_LOG_LEVEL %r is no level; INFO is used", level)
    return logging.getLogger(name)


def quiet() -> None:
    """Log warnings and errors only, here and in processes that are started from now on, unless the user wants otherwise.

    For commands that talk to a person: what was decided while loading is for `octavo serve` and `octavo doctor`.
    """
    if default_log_level("WARNING"):
        get_logger("octavo").setLevel("WARNING")
