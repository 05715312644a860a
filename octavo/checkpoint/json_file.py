"""JSON files from outside, read with errors that name the file and the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.base.errors import CheckpointError


class JsonObject:
    """A JSON object of unknown make. Typed getters: null counts as missing, a wrong type is a CheckpointError."""

    def __init__(self, place: str, values: dict[str, Any]) -> None:
        self.place = place
        self.values = values

    def fail(self, key: str, what: str) -> CheckpointError:
        """Return the error that says what is wrong with `key`."""
        return CheckpointError(f"{self.place}: {key!r} {what}", field=key)

    def integer(self, key: str, default: int | None = None, *, low: int = 0) -> int:
        """Return a whole number of at least `low`; raises CheckpointError if it is missing without a default."""
        value: object = self._found(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(key, f"must be a whole number, not {value!r}")
        if value < low:
            raise self.fail(key, f"must be at least {low}, not {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number; raises CheckpointError as `integer` does."""
        value: object = self._found(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.fail(key, f"must be a positive number, not {value!r}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; raises CheckpointError as `integer` does."""
        value: object = self._found(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, not {value!r}")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false; raises CheckpointError as `integer` does."""
        value: object = self._found(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, not {value!r}")
        return value

    def object(self, key: str) -> JsonObject | None:
        """Return an object, or None if it is missing."""
        value: Any = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fail(key, f"must be an object, not {value!r}")
        return None if value is None else JsonObject(f"{self.place}: {key}", value)

    def list(self, key: str) -> list[Any] | None:
        """Return a list, or None if it is missing."""
        value: Any = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.fail(key, f"must be a list, not {value!r}")
        return value

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def _found(self, key: str, default: object) -> object:
        value: object = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise self.fail(key, "is missing")
        return value


def read_json(path: Path) -> JsonObject:
    """Read a file that holds one JSON object; raises CheckpointError naming the file."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return JsonObject(str(path), value)


def read_json_if_there(path: Path) -> JsonObject:
    """As `read_json`, but a missing file counts as an empty object."""
    return read_json(path) if path.is_file() else JsonObject(str(path), {})
