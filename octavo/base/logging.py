"""Logging: one format for every process, to standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from octavo.base.env import default_log_level, read_env, share_log_format

_FORMAT = "%(levelname).1s %(asctime)s %(name)s] %(message)s"


class _Json(logging.Formatter):
    """One object a line. A record's `fields` (logging's `extra`) are keys of their own."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **vars(record).get("fields", {}),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; the first call sets up the `octavo` root logger."""
    root = logging.getLogger("octavo")
    if not root.handlers:
        env = read_env()
        root.addHandler(logging.StreamHandler())
        root.setLevel(env.log_level if env.log_level in logging.getLevelNamesMapping() else "INFO")
        root.propagate = False
        _use_format(env.log_format)
        if env.log_level not in logging.getLevelNamesMapping():
            root.warning("OCTAVO_LOG_LEVEL %r is no level; INFO is used", env.log_level)
        if env.log_format not in ("text", "json"):
            root.warning("OCTAVO_LOG_FORMAT %r is neither text nor json; text is used", env.log_format)
    return logging.getLogger(name)


def set_log_format(name: str) -> None:
    """Write lines as `text` or as `json`, here and in processes that are started from now on."""
    get_logger("octavo")
    share_log_format(name)
    _use_format(name)


def _use_format(name: str) -> None:
    handler = logging.getLogger("octavo").handlers[0]
    handler.setFormatter(_Json() if name == "json" else logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    if name == "json":
        # What libraries log, and the error that ends a process, must be objects too.
        logging.getLogger().addHandler(handler)
        sys.excepthook = lambda *error: get_logger("octavo").critical("the process failed", exc_info=error)


def quiet() -> None:
    """Log warnings and errors only, here and in processes that are started from now on, unless the user wants otherwise.

    For commands that talk to a person: what was decided while loading is for `octavo serve` and `octavo doctor`.
    """
    if default_log_level("WARNING"):
        get_logger("octavo").setLevel("WARNING")
