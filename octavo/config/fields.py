"""How an option is declared: a dataclass field with its help text and, where it has one, its range."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any

from octavo.base.errors import ConfigError


def option(default: Any, help: str, *, low: float | None = None, high: float | None = None, metavar: str = "") -> Any:
    """Declare an option. `low` and `high` are the inclusive range of a number."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "metavar": metavar})


def check_ranges(record: Any) -> None:
    """Raise ConfigError naming the field and the range of the first number out of its range."""
    for declared in fields(record):
        value = getattr(record, declared.name)
        low, high = declared.metadata.get("low"), declared.metadata.get("high")
        if value is None or (low is None and high is None):
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ConfigError(f"{declared.name} must be a number, not {value!r}", field=declared.name)
        if (low is not None and value < low) or (high is not None and value > high):
            raise ConfigError(f"{declared.name} must be {_span(declared)}, not {value}", field=declared.name)


def _span(declared: Field[Any]) -> str:
    low, high = declared.metadata["low"], declared.metadata["high"]
    if low is not None and high is not None:
        return f"between {low:g} and {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}"
