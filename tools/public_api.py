"""The public names as lines of text: `tests/arch/public_api.txt`. A change of it is a change for users, seen in review.

Rule: a line does not vanish at once. The name goes on working for one minor version with a DeprecationWarning that says what to
use instead, and the changelog lists it under "Deprecated"; `DEPRECATED` holds its line until it may go.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

import octavo
from octavo.cli.main import COMMANDS
from octavo.config.flags import own_flags

# Line of the last release's snapshot -> the version since which using it warns.
DEPRECATED: dict[str, str] = {}


def render() -> str:
    """Return the snapshot: names of the package with their parameters, commands and flags."""
    lines = [line for name in octavo.__all__ for line in _describe(name, vars(octavo).get(name, getattr(octavo, name)))]
    lines += [f"command {name}" for name in sorted(COMMANDS)]
    lines += [f"option {name}" for name in sorted(own_flags())]
    return "\n".join([*lines, ""])


def broken(released: Sequence[str], now: Sequence[str], version: str, deprecated: dict[str, str]) -> list[str]:
    """Return the lines of the last release that are gone without having warned in an earlier minor version."""
    gone = [line for line in released if line not in set(now)]
    return [line for line in gone if line not in deprecated or _minor(deprecated[line]) >= _minor(version)]


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _describe(name: str, thing: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(thing):
        yield f"record {name}"
        yield from (f"{name}.{field.name}{_default(field)}" for field in dataclasses.fields(thing))
    elif inspect.isclass(thing) and issubclass(thing, msgspec.Struct):
        yield f"record {name}"
        for field in msgspec.structs.fields(thing):
            yield f"{name}.{field.name}" + (f" = {field.default!r}" if field.default is not msgspec.NODEFAULT else "")
    elif inspect.isclass(thing) and issubclass(thing, BaseException):
        yield f"error {name}({', '.join(base.__name__ for base in thing.__bases__)})"
        return
    elif typing.is_typeddict(thing):
        yield f"mapping {name}"
        yield from (f"{name}[{key!r}]" for key in thing.__annotations__)
        return
    else:
        yield f"class {name}{_signature(thing)}"
    for member, value in vars(thing).items():
        if not member.startswith("_") and not isinstance(value, (str, int)):
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if inspect.isfunction(plain):
                yield f"{name}.{member}{_signature(plain)}"
            elif isinstance(value, property):
                yield f"{name}.{member} (property)"


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"


def _signature(function: Any) -> str:
    """Return the parameters with their defaults; types are for readers, and change more often than what works."""
    given = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in given.parameters.values() if one.name != "self"]
    return str(inspect.Signature(plain))
