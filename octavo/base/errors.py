"""The exception tree. Each error knows its HTTP status, so every face reports it alike.

Errors for users say what is wrong, where (`field`), and which values are allowed. Invariants of our own code are
`assert`s, not errors.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Root of all errors raised on purpose. `status` is the HTTP status, `kind` OpenAI's error type."""

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


def known_error(kind: str, message: str) -> OctavoError | None:
    """Return the error of this class name, as it was raised in another process; None for one that is not of this tree."""
    found = globals().get(kind)
    return found(message) if isinstance(found, type) and issubclass(found, OctavoError) else None


class InvalidRequestError(OctavoError, ValueError):
    """A request that cannot be served as it stands; `field` names the offending field."""

    status = 400
    kind = "invalid_request_error"


class UnsupportedError(InvalidRequestError):
    """A legal request for something this build or model does not do."""


class NotFoundError(OctavoError):
    """An unknown model, route or object."""

    status = 404
    kind = "not_found_error"


class QueueFullError(OctavoError):
    """The waiting queue is at its limit. reason: as metrics call it."""

    status = 429
    kind = "overloaded_error"
    reason = "queue_full"


class QueuedTokensError(QueueFullError):
    """The prompts that wait have as many tokens as may wait."""

    reason = "queue_tokens"


class QueueTimeoutError(OctavoError):
    """A request waited longer than it may; the engine had not begun with it."""

    status = 503
    kind = "queue_timeout_error"
    reason = "queue_timeout"


class EngineDeadError(OctavoError):
    """The engine process is gone or no longer answers; nothing can be generated."""

    status = 503
    kind = "engine_dead_error"


class EngineStartingError(OctavoError):
    """The engine loads its model, for the first time or because it died; it will serve again."""

    status = 503
    kind = "engine_starting_error"


class ShuttingDownError(OctavoError):
    """The server drains: running requests finish, new ones are refused."""

    status = 503
    kind = "shutting_down_error"


class GenerationError(OctavoError):
    """Generation of one request failed (NaN logits, failed transfer); other requests are not touched."""

    kind = "generation_error"


class ConfigError(OctavoError, ValueError):
    """An engine option that is unknown, out of range or does not fit the model or device; raised at start."""

    status = 400
    kind = "config_error"


class CheckpointError(OctavoError):
    """A checkpoint that is missing, damaged or not understood; names the file, tensor or key."""

    kind = "checkpoint_error"


class PluginError(OctavoError):
    """An unknown registry name, or a plugin that failed to import."""

    kind = "plugin_error"
