"""How an option is declared and checked: a dataclass field with its help text and, where it has one, its range."""

from __future__ import annotations

import types
from dataclasses import Field, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from octavo.base.errors import ConfigError


def option(default: Any, help: str, *, low: float | None = None, high: float | None = None, short: str = "") -> Any:
    """Declare an option. `low` and `high` are the inclusive range of a number; `short` is a second spelling of its flag."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "short": short})


def check_options(record: Any) -> None:
    """Raise ConfigError naming the first field whose value is of another type than declared, or out of its range."""
    hints = get_type_hints(type(record))
    for declared in fields(record):
        name, value = declared.name, getattr(record, declared.name)
        if not _fits(value, hints[name]):
            raise ConfigError(f"{name} must be {_words(hints[name])}, not {value!r}", field=name)
        low, high = declared.metadata["low"], declared.metadata["high"]
        # Written so that NaN is in no range.
        if value is not None and not ((low is None or value >= low) and (high is None or value <= high)):
            raise ConfigError(f"{name} must be {range_text(declared)}, not {value}", field=name)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else get_origin(hint) or hint)


def _words(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(_words(one) for one in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", types.NoneType: "None"}
    return "a dictionary" if get_origin(hint) is dict else names.get(hint, "a tuple of strings")


def range_text(declared: Field[Any]) -> str:
    """Return the allowed numbers of an option, for people; empty where there is no limit."""
    low, high = declared.metadata["low"], declared.metadata["high"]
    if low is not None and high is not None:
        return f"between {low:.10g} and {high:.10g}"
    if low is not None:
        return f"at least {low:.10g}"
    return "" if high is None else f"at most {high:.10g}"
